"""The guardrail on final outputs of OpenAI's SDK, with a model that nobody guards."""

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
