"""LangGraph's supervisor makes the decisions of `benchmarks/routing.py`, which starts this script.

The model picks the agent from a table without any delay, and the agents reply at once, so what is
timed is the supervisor's own work: two turns of the model, the hand-over and an empty turn of an
agent.
Prints a line of JSON: CPU milliseconds a task and whether all went to the agent of the table.
"""

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from time import process_time

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph_supervisor import create_supervisor


class TableModel(BaseChatModel):
    """Calls the hand-over tool of the agent that the table names; says `done` after that."""

    agents: dict[str, str]

    @property
    def _llm_type(self) -> str:
        return "table"

    def bind_tools(self, tools: Sequence[object], **_: object) -> "TableModel":
        return self

    def _generate(self, messages: list[BaseMessage], *_: object, **__: object) -> ChatResult:
        last = messages[-1]
        reply = AIMessage("done")
        if isinstance(last, HumanMessage):
            name = f"transfer_to_{self.agents[str(last.content)]}"
            reply = AIMessage("", tool_calls=[{"name": name, "args": {}, "id": "1"}])
        return ChatResult(generations=[ChatGeneration(message=reply)])


def agent(name: str):  # noqa: ANN201 - a compiled graph, whose type has four parameters
    graph = StateGraph(MessagesState)
    graph.add_node("reply", lambda _: {"messages": [AIMessage(name, name=name)]})
    graph.add_edge(START, "reply")
    graph.add_edge("reply", END)
    return graph.compile(name=name)


def main() -> None:
    """Read {"agents": type -> agent, "types": [tasks]} and route every task."""
    given = json.load(sys.stdin)
    names = sorted(set(given["agents"].values()))
    model = TableModel(agents=given["agents"])
    supervisor = create_supervisor([agent(name) for name in names], model=model).compile()
    chosen, began = [], 0.0
    for number, task_type in enumerate([given["types"][0], *given["types"]]):
        if number == 1:  # the first warms up
            began = process_time()
        state = supervisor.invoke({"messages": [HumanMessage(task_type)]})
        chosen += [m.name for m in state["messages"] if m.name in names and m.content == m.name]
    seconds = process_time() - began
    right = chosen[1:] == [given["agents"][task_type] for task_type in given["types"]]
    milliseconds = 1000 * seconds / len(given["types"])
    print(
        json.dumps({"ms": milliseconds, "right": right, "version": version("langgraph-supervisor")})
    )


if __name__ == "__main__":
    main()
