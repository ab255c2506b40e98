"""An agent of Microsoft's framework with our middleware."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

from drivers import Answer
from waltzrl_integrations.agent_framework import GuardChatMiddleware


async def aask(case):
    client = OpenAIChatCompletionClient(model="bad", base_url=case.url, api_key="none")
    agent = Agent(
        client,
        tools=[case.tool] if case.tool else None,
        middleware=[GuardChatMiddleware(case.guard)],
    )
    seen = []
    if case.mode == "astream":
        stream = agent.run(case.prompt, stream=True)
        seen = [repr(update.to_dict()) async for update in stream]
        response = await stream.get_final_response()
    else:
        response = await agent.run(case.prompt)
    used = response.usage_details
    return Answer(
        text=response.text,
        seen=[*seen, repr(response.to_dict()), repr(response.raw_representation)],
        usage=(used["input_token_count"], used["output_token_count"]),
    )
