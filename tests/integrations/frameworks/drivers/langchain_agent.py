"""An agent of `create_agent` with our middleware."""

from langchain.agents import create_agent

from drivers import Answer
from drivers.langchain_common import Callbacks, bad_model, tools_of, usage_of
from waltzrl.integrations.langchain_agents import GuardMiddleware

MODES = ["messages", "updates", "values"]


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
    agent = create_agent(
        bad_model(case), tools=tools_of(case), middleware=[GuardMiddleware(case.guard)]
    )
    return agent, {"messages": [{"role": "user", "content": case.prompt}]}, Callbacks()


def answer(state, callbacks):
    messages = state["messages"]
    return Answer(text=messages[-1].text, seen=callbacks.seen, usage=usage_of(messages))


def answer_of_stream(events, callbacks):
    callbacks.seen += [repr(event) for event in events]
    return answer([state for mode, state in events if mode == "values"][-1], callbacks)
