"""A graph of our node and LangGraph's own node for tools."""

from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from drivers.langchain_agent import MODES, answer, answer_of_stream
from drivers.langchain_common import Callbacks, bad_model, tools_of
from waltzrl.integrations.langchain_agents import guarded_node


def ask(case):
    graph, asked, callbacks = begin(case)
    config = {"callbacks": [callbacks]}
    if case.mode == "sync":
        return answer(graph.invoke(asked, config), callbacks)
    return answer_of_stream(list(graph.stream(asked, config, stream_mode=MODES)), callbacks)


async def aask(case):
    graph, asked, callbacks = begin(case)
    config = {"callbacks": [callbacks]}
    if case.mode == "async":
        return answer(await graph.ainvoke(asked, config), callbacks)
    stream = graph.astream(asked, config, stream_mode=MODES)
    return answer_of_stream([event async for event in stream], callbacks)


def begin(case):
    model, tools = bad_model(case), tools_of(case)
    graph = StateGraph(MessagesState)
    graph.add_node("model", guarded_node(model.bind_tools(tools) if tools else model, case.guard))
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    asked = {"messages": [{"role": "user", "content": case.prompt}]}
    return graph.compile(), asked, Callbacks()
