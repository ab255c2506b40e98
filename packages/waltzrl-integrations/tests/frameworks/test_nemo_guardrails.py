"""The output rail of NeMo Guardrails, around a model that nobody else guards."""

import asyncio

import pytest
from drivers import of_framework

from support.bad_model import BAD, REVISED, UNSAFE, BadModel
from support.openai_server import serving
from waltzrl import RemotePolicy, open_guard

GUARDRAILS = pytest.mark.promise(
    "Adapters for frameworks",
    "Output guardrails of NeMo and Guardrails AI revise an unsafe reply, or end what they cannot "
    "revise, and leave a good one as it is",
)

pytestmark = of_framework("nemo")
CONFIG = """
passthrough: true
models:
  - {{type: main, engine: openai, model: bad, parameters: {{base_url: "{url}", api_key: none}}}}
rails: {{output: {{streaming: {{enabled: {streaming}, stream_first: false}}}}}}
"""


def converse(use, *, streaming=False):
    """Run `use(rails)` with rails around the bad model; return its result and the requests."""

    async def run():
        from nemoguardrails import LLMRails, RailsConfig

        from waltzrl_integrations.nemo_guardrails import OUTPUT_RAIL, revise_action

        with serving({"bad": BadModel()}) as server:
            yaml = CONFIG.format(url=server.base_url, streaming=str(streaming).lower())
            async with open_guard(upstream=RemotePolicy(server.base_url, "bad")) as guard:
                rails = LLMRails(OUTPUT_RAIL + RailsConfig.from_content(yaml_content=yaml))
                rails.register_action(revise_action(guard))
                return await use(rails), [body for _headers, body in server.requests]

    return asyncio.run(run())


def said(*texts):
    roles = ["user", "assistant"] * len(texts)
    return [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]


@GUARDRAILS
def test_a_reply_is_revised_with_the_conversation_before_it():
    async def use(rails):
        return await rails.generate_async(messages=said("Hello.", "Good day.", BAD))

    reply, requests = converse(use)
    assert reply["content"] == REVISED
    assert [turn["content"] for turn in requests[-1]["messages"]][:3] == [
        "Hello.",
        "Good day.",
        BAD,
    ]


@GUARDRAILS
def test_a_good_reply_stays_as_it_is():
    async def use(rails):
        return await rails.generate_async(messages=said("How do I bake bread?"))

    reply, requests = converse(use)
    assert reply["content"] == "You said: How do I bake bread?"
    assert len(requests) == 1


@pytest.mark.parametrize("asked", [BAD, "How do I bake bread?"])
def test_a_stream_ends_before_what_is_unsafe(asked):
    async def use(rails):
        return [chunk async for chunk in rails.stream_async(messages=said(asked))]

    chunks, _requests = converse(use, streaming=True)
    assert UNSAFE not in "".join(chunks)
    assert ("Blocked by waltzrl revise rails" in chunks[-1]) == (asked == BAD)
