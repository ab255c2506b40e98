"""An agent of Pydantic AI whose model we guard."""

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from drivers import Answer
from waltzrl_integrations.pydantic_ai import GuardedWrapperModel


def ask(case):
    agent = agent_of(case)
    if case.mode == "sync":
        return answer(agent.run_sync(case.prompt), [])
    result = agent.run_stream_sync(case.prompt)
    pieces = list(result.stream_text(delta=True, debounce_by=None))
    return Answer(
        text=result.get_output(), seen=[*pieces, repr(result.all_messages())], usage=tokens(result)
    )


async def aask(case):
    agent = agent_of(case)
    if case.mode == "async":
        return answer(await agent.run(case.prompt), [])
    seen = []
    async with agent.run_stream_events(case.prompt) as events:
        async for event in events:
            seen.append(repr(event))
    return answer(event.result, seen)


def agent_of(case):
    provider = OpenAIProvider(base_url=case.url, api_key="none")
    model = GuardedWrapperModel(OpenAIChatModel("bad", provider=provider), case.guard)
    return Agent(model, tools=[case.tool] if case.tool else [])


def answer(result, seen):
    return Answer(
        text=result.output, seen=[*seen, repr(result.all_messages())], usage=tokens(result)
    )


def tokens(result):
    usage = result.usage() if callable(result.usage) else result.usage
    return (usage.input_tokens, usage.output_tokens)
