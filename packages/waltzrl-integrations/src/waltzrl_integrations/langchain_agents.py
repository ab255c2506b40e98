"""Middleware for LangChain's agents, and a node for LangGraph.

create_agent(model, tools, middleware=[GuardMiddleware(guard)])
graph.add_node("model", guarded_node(model, guard))
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from waltzrl.gateway.guard import Guard
from waltzrl_integrations import drafts
from waltzrl_integrations.langchain import GuardedChatModel, turns_of

with drafts.needs("LangChain", "langchain>=1.0"):
    from langchain.agents.middleware import (
        AgentMiddleware,
        ModelRequest,
        ModelResponse,
        hook_config,
    )
    from langchain_core.messages import AIMessage
    from langchain_core.runnables import Runnable, RunnableLambda

State: TypeAlias = dict[str, Any]


class GuardMiddleware(AgentMiddleware):
    """Reviews the request before an agent acts, and wraps its model in a `GuardedChatModel`."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self.guard = guard

    @hook_config(can_jump_to=["end"])
    def before_agent(self, state: State, runtime: object) -> State | None:
        return drafts.run_blocking(_check_state, self.guard, state)

    @hook_config(can_jump_to=["end"])
    async def abefore_agent(self, state: State, runtime: object) -> State | None:
        return await _check_state(self.guard, state)

    def wrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], ModelResponse]
    ) -> ModelResponse:
        return handler(self._guard_request(request))

    async def awrap_model_call(
        self, request: ModelRequest, handler: Callable[[ModelRequest], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        return await handler(self._guard_request(request))

    def _guard_request(self, request: ModelRequest) -> ModelRequest:
        return request.override(model=GuardedChatModel(model=request.model, guard=self.guard))


def guarded_node(model: Runnable, guard: Guard) -> Runnable:
    """Return a node that answers `messages` with a guarded chat model."""
    guarded = GuardedChatModel(model=model, guard=guard)

    def answer(state: object) -> State:
        return {"messages": [guarded.invoke(_read_messages(state))]}

    async def aanswer(state: object) -> State:
        return {"messages": [await guarded.ainvoke(_read_messages(state))]}

    return RunnableLambda(answer, aanswer)


def _read_messages(state: object) -> Any:
    """Return the messages of a state, which is a dict, or of the graph's own class."""
    return state["messages"] if isinstance(state, dict) else vars(state)["messages"]


async def _check_state(guard: drafts.AnyGuard, state: State) -> State | None:
    answer = await drafts.check_request(guard, turns_of(state["messages"]))
    return None if answer is None else {"messages": [AIMessage(answer)], "jump_to": "end"}
