"""A guarded chat model as a `Runnable`, with the tool called by hand."""

from langchain_core.messages import HumanMessage

from drivers import Answer
from drivers.langchain_common import Callbacks, bad_model, tools_of, usage_of
from waltzrl_integrations.langchain import GuardedChatModel


def ask(case):
    model, tools, callbacks = begin(case)
    messages = [HumanMessage(case.prompt)]
    while True:
        if case.mode == "stream":
            chunks = list(model.stream(messages, {"callbacks": [callbacks]}))
            messages.append(joined(chunks, callbacks))
        else:
            messages.append(model.invoke(messages, {"callbacks": [callbacks]}))
        if not messages[-1].tool_calls:
            return answer(messages, callbacks)
        messages += [tools[0].invoke(call) for call in messages[-1].tool_calls]


async def aask(case):
    model, tools, callbacks = begin(case)
    messages = [HumanMessage(case.prompt)]
    while True:
        if case.mode == "astream":
            stream = model.astream(messages, {"callbacks": [callbacks]})
            messages.append(joined([chunk async for chunk in stream], callbacks))
        else:
            messages.append(await model.ainvoke(messages, {"callbacks": [callbacks]}))
        if not messages[-1].tool_calls:
            return answer(messages, callbacks)
        messages += [await tools[0].ainvoke(call) for call in messages[-1].tool_calls]


def begin(case):
    model, tools = GuardedChatModel(model=bad_model(case), guard=case.guard), tools_of(case)
    return model.bind_tools(tools) if tools else model, tools, Callbacks()


def joined(chunks, callbacks):
    callbacks.seen += [repr(chunk) for chunk in chunks]
    return sum(chunks[1:], chunks[0])


def answer(messages, callbacks):
    return Answer(text=messages[-1].text, seen=callbacks.seen, usage=usage_of(messages))
