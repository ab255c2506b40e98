"""What the three drivers of LangChain share."""

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage
from langchain_core.tools import StructuredTool
from langchain_openai import ChatOpenAI

from drivers import Answer

MODES = ["messages", "updates", "values"]
"""What a stream of a graph shows."""


class Callbacks(BaseCallbackHandler):
    """Notes whatever LangChain tells about replies."""

    def __init__(self):
        self.seen = []

    def on_llm_new_token(self, token, *, chunk=None, **_):
        self.seen.append(repr((token, chunk)))

    def on_llm_end(self, response, **_):
        self.seen.append(repr(response))

    def on_chain_end(self, outputs, **_):
        self.seen.append(repr(outputs))


def bad_model(case):
    return ChatOpenAI(model="bad", base_url=case.url, api_key="none", stream_usage=True)


def tools_of(case):
    if case.tool is None:
        return []
    return [StructuredTool.from_function(case.tool, name="look_up", description="Look it up.")]


def usage_of(messages):
    counts = [message.usage_metadata for message in messages if isinstance(message, AIMessage)]
    known = [count for count in counts if count]
    return (sum(c["input_tokens"] for c in known), sum(c["output_tokens"] for c in known))


def ask_graph(graph, case):
    callbacks = Callbacks()
    config = {"callbacks": [callbacks]}
    if case.mode == "sync":
        return _answer(graph.invoke(_asked(case), config), callbacks)
    return _streamed(list(graph.stream(_asked(case), config, stream_mode=MODES)), callbacks)


async def aask_graph(graph, case):
    callbacks = Callbacks()
    config = {"callbacks": [callbacks]}
    if case.mode == "async":
        return _answer(await graph.ainvoke(_asked(case), config), callbacks)
    stream = graph.astream(_asked(case), config, stream_mode=MODES)
    return _streamed([event async for event in stream], callbacks)


def _asked(case):
    return {"messages": [{"role": "user", "content": case.prompt}]}


def _streamed(events, callbacks):
    callbacks.seen += [repr(event) for event in events]
    return _answer([state for mode, state in events if mode == "values"][-1], callbacks)


def _answer(state, callbacks):
    messages = state["messages"]
    return Answer(text=messages[-1].text, seen=callbacks.seen, usage=usage_of(messages))
