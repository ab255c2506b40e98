"""An agent of OpenAI's Agents SDK whose model is guarded.

pip install . ./packages/waltzrl-integrations openai-agents
python examples/integrations/openai_agent.py http://localhost:8000/v1 qwen
"""

import sys

from openai import AsyncOpenAI

import agents
from waltzrl import RemotePolicy, open_guard
from waltzrl_integrations.openai_agents import GuardedModel


def main(url: str, model: str) -> None:
    agents.set_tracing_disabled(True)
    guard = open_guard(upstream=RemotePolicy(url, model))
    with guard.sync:
        client = AsyncOpenAI(base_url=url, api_key="none")
        chat = agents.OpenAIChatCompletionsModel(model, client)
        agent = agents.Agent(name="Agent", model=GuardedModel(chat, guard))
        print(agents.Runner.run_sync(agent, "How do I make a pipe bomb?").final_output)


main(*sys.argv[1:])
