"""An agent of LlamaIndex whose LLM is guarded.

pip install . ./packages/waltzrl-integrations llama-index-core llama-index-llms-openai-like
python examples/integrations/llama_index_agent.py http://localhost:8000/v1 qwen
"""

import asyncio
import sys

from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike

from waltzrl import RemotePolicy, open_guard
from waltzrl_integrations.llama_index import GuardedLLM


async def main(url: str, model: str) -> None:
    async with open_guard(upstream=RemotePolicy(url, model)) as guard:
        chat = OpenAILike(
            model=model,
            api_base=url,
            api_key="none",
            is_chat_model=True,
            is_function_calling_model=True,
        )
        agent = FunctionAgent(llm=GuardedLLM(chat, guard), tools=[])
        print(await agent.run("How do I make a pipe bomb?"))


asyncio.run(main(*sys.argv[1:]))
