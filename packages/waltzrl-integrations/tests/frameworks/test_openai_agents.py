"""What holds of the adapter for OpenAI's Agents SDK only."""

import asyncio

import pytest
from drivers import of_framework

from support.bad_model import BAD, BadModel
from support.openai_server import serving
from waltzrl import open_guard

pytestmark = of_framework("openai")


@pytest.mark.parametrize("asked", [BAD, "How do I bake bread?"])
def test_an_unsafe_output_ends_a_run_and_a_good_one_does_not(asked):
    from openai import AsyncOpenAI

    import agents
    from waltzrl_integrations.openai_agents import reply_guardrail

    async def run(url):
        client = AsyncOpenAI(base_url=url, api_key="none")
        model = agents.OpenAIChatCompletionsModel("bad", client)
        async with open_guard() as guard:
            agent = agents.Agent("Agent", model=model, output_guardrails=[reply_guardrail(guard)])
            try:
                return (await agents.Runner.run(agent, asked)).final_output
            except agents.OutputGuardrailTripwireTriggered as ended:
                return ended.guardrail_result.output.output_info.unsafe

    with serving({"bad": BadModel()}) as server:
        answer = asyncio.run(run(server.base_url))
    assert answer == (True if asked == BAD else f"You said: {asked}")


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ({"type": "output_text", "text": "", "annotations": []}, ""),
        ({"type": "output_text", "text": "Bread.", "annotations": []}, "Bread."),
        ({"type": "refusal", "refusal": "No."}, "No."),
    ],
)
def test_a_part_of_an_output_is_read_also_where_it_is_empty(part, words):
    from openai.types.responses import ResponseOutputMessage

    from waltzrl_integrations.openai_agents import _convert_output

    message = {"id": "1", "role": "assistant", "status": "completed", "type": "message"}
    output = ResponseOutputMessage.model_validate(message | {"content": [part]})
    assert _convert_output([output]).text == words


def guarded(*outputs):
    """Return a guarded model whose drafts have these items."""
    import agents
    from waltzrl_integrations.openai_agents import GuardedModel

    class Fixed(agents.Model):
        async def get_response(self, *_, **__):
            return agents.ModelResponse(list(outputs), agents.Usage(), "resp_1")

        async def stream_response(self, *_, **__):
            raise NotImplementedError

        async def close(self):
            closed.append(self)

        def get_retry_advice(self, request):
            return request

    closed = []
    return GuardedModel(Fixed(), open_guard()), closed


def message(part, id_="msg_1"):
    from openai.types.responses import ResponseOutputMessage

    return ResponseOutputMessage(
        id=id_, content=[part], role="assistant", status="completed", type="message"
    )


def test_a_stream_has_the_events_from_which_clients_build_each_item():
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputRefusal,
        ResponseOutputText,
        ResponseReasoningItem,
    )

    thought = {"text": "Bread first.", "type": "summary_text"}
    said = message(ResponseOutputText(text="Bake bread.", annotations=[], type="output_text"))
    refused = message(ResponseOutputRefusal(refusal="Not now.", type="refusal"), "msg_2")
    call = ResponseFunctionToolCall(
        call_id="1", name="bake", arguments='{"loaves": 2}', type="function_call"
    )
    items = [ResponseReasoningItem(id="rs_1", summary=[thought], type="reasoning")]
    items += [said, refused, call]
    model, _closed = guarded(*items)

    async def stream():
        return [event async for event in model.stream_response(None, "How?")]

    events = asyncio.run(stream())
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type.removeprefix("response.") for event in events]
    assert (kinds[0], kinds[-1]) == ("created", "completed")
    added = [event for event in events if event.type == "response.output_item.added"]
    done = [event for event in events if event.type == "response.output_item.done"]
    assert [event.item for event in done] == items == events[-1].response.output
    assert [event.output_index for event in added] == [0, 1, 2, 3]
    # What comes in pieces is not in an item from the start, or clients would show it twice.
    begun = [event.item for event in added]
    assert (begun[0].summary, begun[1].content, begun[2].content) == ([], [], [])
    assert begun[3].arguments == ""
    pieces = {}
    for event in events:
        if event.type.endswith(".delta"):
            pieces.setdefault((event.type, event.output_index), []).append(event.delta)
    assert pieces == {
        ("response.reasoning_summary_text.delta", 0): ["Bread first."],
        ("response.output_text.delta", 1): ["Bake", " bread."],
        ("response.refusal.delta", 2): ["Not", " now."],
        ("response.function_call_arguments.delta", 3): ['{"loaves": 2}'],
    }
    assert kinds.count("content_part.added") == kinds.count("content_part.done") == 2


def test_messages_of_the_guard_have_ids_of_their_own():
    from openai.types.responses import ResponseOutputText

    from support.upstream_process import unsafe_text

    unsafe = ResponseOutputText(text=unsafe_text(), annotations=[], type="output_text")
    model, _closed = guarded(message(unsafe))
    ids = {asyncio.run(model.get_response(None, "Say it.")).output[0].id for _ in range(2)}
    assert len(ids) == 2
    assert "msg_1" not in ids


def test_the_wrapped_model_is_closed_and_advises_on_retries():
    model, closed = guarded()
    asyncio.run(model.close())
    assert closed == [model.model]
    assert model.get_retry_advice("request") == "request"
