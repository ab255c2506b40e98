"""An agent of `create_agent` with our middleware."""

from langchain.agents import create_agent

from drivers.langchain_common import aask_graph, ask_graph, bad_model, tools_of
from waltzrl_integrations.langchain_agents import GuardMiddleware


def ask(case):
    return ask_graph(agent(case), case)


async def aask(case):
    return await aask_graph(agent(case), case)


def agent(case):
    return create_agent(
        bad_model(case), tools=tools_of(case), middleware=[GuardMiddleware(case.guard)]
    )
