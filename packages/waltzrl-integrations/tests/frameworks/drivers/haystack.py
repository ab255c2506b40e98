"""An agent of Haystack whose chat generator is ours."""

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from haystack.utils import Secret

from drivers import Answer
from waltzrl_integrations.haystack import GuardedChatGenerator


def ask(case):
    agent, seen, asked = begin(case)
    return answer(agent.run(**asked), seen)


async def aask(case):
    agent, seen, asked = begin(case)
    return answer(await agent.run_async(**asked), seen)


def begin(case):
    seen = []
    key = Secret.from_token("none")
    bad = OpenAIChatGenerator(model="bad", api_base_url=case.url, api_key=key)
    bad.streaming_callback = lambda chunk: seen.append(repr(chunk))
    tools = [create_tool_from_function(case.tool)] if case.tool else []
    agent = Agent(chat_generator=GuardedChatGenerator(bad, case.guard), tools=tools)
    asked = {"messages": [ChatMessage.from_user(case.prompt)]}
    if "stream" in case.mode:
        asked["streaming_callback"] = bad.streaming_callback
    return agent, seen, asked


def answer(state, seen):
    messages = state["messages"]
    used = [message.meta["usage"] for message in messages if "usage" in message.meta]
    return Answer(
        text=messages[-1].text,
        seen=[*seen, repr(messages)],
        usage=(sum(u["prompt_tokens"] for u in used), sum(u["completion_tokens"] for u in used)),
    )
