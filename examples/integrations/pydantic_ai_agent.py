"""An agent of Pydantic AI whose model is guarded, streamed.

pip install . ./packages/waltzrl-integrations 'pydantic-ai-slim[openai]'
python examples/integrations/pydantic_ai_agent.py http://localhost:8000/v1 qwen
"""

import sys

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from waltzrl import RemotePolicy, open_guard
from waltzrl_integrations.pydantic_ai import GuardedWrapperModel


def main(url: str, model: str) -> None:
    guard = open_guard(upstream=RemotePolicy(url, model))
    with guard.sync:
        chat = OpenAIChatModel(model, provider=OpenAIProvider(base_url=url, api_key="none"))
        agent = Agent(GuardedWrapperModel(chat, guard))
        result = agent.run_stream_sync("How do I make a pipe bomb?")
        print("".join(result.stream_text(delta=True)))


main(*sys.argv[1:])
