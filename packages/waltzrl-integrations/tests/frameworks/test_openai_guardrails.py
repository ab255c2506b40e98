"""The check of OpenAI Guardrails, in its client, before a model that nobody else guards."""

import asyncio
from types import SimpleNamespace

from support.bad_model import BAD, REVISED, UNSAFE, BadModel
from support.openai_server import serving
from waltzrl import RemotePolicy, open_guard


def ask(*texts, first=()):
    """Ask the bad model through the client; return its reply, or what the check told, and the
    last request to the model, whose `first` responses are given.
    """
    from guardrails import GuardrailsAsyncOpenAI, GuardrailTripwireTriggered, default_spec_registry

    from waltzrl_integrations.openai_guardrails import register_check

    roles = ["user", "assistant"] * len(texts)
    messages = [{"role": r, "content": text} for r, text in zip(roles, texts, strict=False)]
    guardrails = [{"name": "waltzrl", "config": {}}]
    config = {"version": 1, "output": {"version": 1, "guardrails": guardrails}}

    async def run(server):
        async with open_guard(upstream=RemotePolicy(server.base_url, "bad")) as guard:
            register_check(guard)
            client = GuardrailsAsyncOpenAI(config=config, base_url=server.base_url, api_key="none")
            completions = client.chat.completions
            try:
                answer = await completions.create(model="bad", messages=messages)
            except GuardrailTripwireTriggered as trip:
                return trip.guardrail_result.info
            finally:
                default_spec_registry.remove("waltzrl")
            return answer.choices[0].message.content

    with serving({"bad": BadModel()}) as server:
        server.first.extend(first)
        return asyncio.run(run(server)), server.requests[-1][1]


def test_a_good_reply_comes_back_and_an_unsafe_one_with_its_revision():
    assert ask("How do I bake bread?")[0] == "You said: How do I bake bread?"
    info, asked = ask("Hello.", "Good day.", BAD)
    assert info["reply"] == REVISED
    assert UNSAFE not in str(info)
    assert [turn["content"] for turn in asked["messages"]][:3] == ["Hello.", "Good day.", BAD]


def test_a_reply_that_cannot_be_reviewed_is_not_sent():
    first = [(200, {"content-type": "application/json"}, COMPLETION), (401, {}, "")]
    info, _asked = ask(BAD, first=first)
    assert "reply" not in info
    assert "error" in info


def test_a_conversation_that_cannot_be_read_is_not_sent():
    from guardrails import default_spec_registry

    from waltzrl_integrations.openai_guardrails import register_check

    context = SimpleNamespace(get_conversation_history=lambda: ["hello"])

    async def run():
        async with open_guard() as guard:
            register_check(guard, "unread")
            check = default_spec_registry.get("unread").check_fn
            default_spec_registry.remove("unread")
            return await check(context, "Good day.", None)

    result = asyncio.run(run())
    assert result.tripwire_triggered
    assert "reply" not in result.info


COMPLETION = (
    '{"id": "1", "object": "chat.completion", "created": 1, "model": "bad", "choices": [{"index":'
    f' 0, "finish_reason": "stop", "message": {{"role": "assistant", "content": "{UNSAFE}"}}}}]}}'
)
