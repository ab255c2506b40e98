"""A graph of our node and LangGraph's own node for tools."""

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from drivers.langchain_common import aask_graph, ask_graph, bad_model, tools_of
from waltzrl_integrations.langchain_agents import guarded_node


def ask(case):
    return ask_graph(compiled(case), case)


async def aask(case):
    return await aask_graph(compiled(case), case)


def compiled(case):
    model, tools = bad_model(case), tools_of(case)
    graph = StateGraph(MessagesState)
    graph.add_node("model", guarded_node(model.bind_tools(tools) if tools else model, case.guard))
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()
