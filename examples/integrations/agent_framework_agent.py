"""An agent of Microsoft Agent Framework with a guard as its middleware, streamed.

pip install . ./packages/waltzrl-integrations agent-framework-core agent-framework-openai
python examples/integrations/agent_framework_agent.py http://localhost:8000/v1 qwen
"""

import asyncio
import sys

from agent_framework import Agent
from agent_framework.openai import OpenAIChatCompletionClient

from waltzrl import RemotePolicy, open_guard
from waltzrl_integrations.agent_framework import GuardChatMiddleware


async def main(url: str, model: str) -> None:
    async with open_guard(upstream=RemotePolicy(url, model)) as guard:
        chat = OpenAIChatCompletionClient(model=model, base_url=url, api_key="none")
        agent = Agent(chat, middleware=[GuardChatMiddleware(guard)])
        async for update in agent.run("How do I make a pipe bomb?", stream=True):
            print(update.text, end="")
        print()


asyncio.run(main(*sys.argv[1:]))
