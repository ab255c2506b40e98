"""An assistant of AutoGen whose model client is ours."""

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import ModelClientStreamingChunkEvent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient

from drivers import Answer
from waltzrl_integrations.autogen import GuardedModelClient

INFO = ModelInfo(
    vision=False, function_calling=True, json_output=True, family="unknown", structured_output=False
)


async def aask(case):
    client = OpenAIChatCompletionClient(
        model="bad", base_url=case.url, api_key="none", model_info=INFO
    )
    agent = AssistantAgent(
        "assistant",
        model_client=GuardedModelClient(client, case.guard),
        tools=[case.tool] if case.tool else None,
        reflect_on_tool_use=True,
        model_client_stream=case.mode == "astream",
    )
    events = [event async for event in agent.run_stream(task=case.prompt)]
    said = events[-1].messages
    counts = [message.models_usage for message in said if message.models_usage]
    chunks = [e for e in events if isinstance(e, ModelClientStreamingChunkEvent)]
    if case.mode == "astream":
        assert "".join(chunk.content for chunk in chunks) == said[-1].content
    return Answer(
        text=said[-1].content,
        seen=[repr(event) for event in events],
        usage=(sum(c.prompt_tokens for c in counts), sum(c.completion_tokens for c in counts)),
    )
