"""A guarded LM of DSPy in a module that calls the tool by hand."""

import dspy
from dspy import lm15
from dspy.utils.callback import BaseCallback

from drivers import Answer
from waltzrl_integrations.dspy import guarded_lm

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LOOK_UP = lm15.FunctionTool(name="look_up", description="Look it up.", parameters=PARAMETERS)


class Callbacks(BaseCallback):
    """Notes whatever DSPy tells about replies."""

    def __init__(self):
        self.seen = []

    def on_lm_end(self, call_id, outputs, exception=None):
        self.seen.append(repr(outputs))


class Ask(dspy.Module):
    def __init__(self, tool):
        super().__init__()
        self.tool = tool

    def forward(self, request):
        while (response := dspy.settings.lm(request)).finish_reason == "tool_call":
            request = self.after_tool(request, response)
        return dspy.Prediction(text=response.message.text)

    async def aforward(self, request):
        while (response := await dspy.settings.lm.acall(request)).finish_reason == "tool_call":
            request = self.after_tool(request, response)
        return dspy.Prediction(text=response.message.text)

    def after_tool(self, request, response):
        (call,) = [part for part in response.message.parts if isinstance(part, lm15.ToolCallPart)]
        result = lm15.Message.tool({call.id: self.tool(**call.input)})
        return ask_for(self.tool, *request.messages, response.message, result)


def ask(case):
    lm, request, callbacks = begin(case)
    with dspy.context(lm=lm, callbacks=[callbacks], track_usage=True):
        program = Ask(case.tool)
        if case.mode == "sync":
            return answer(program(request), lm, callbacks)
        events = list(dspy.streamify(program, async_streaming=False)(request))
        return answer_of_stream(events, lm, callbacks)


async def aask(case):
    lm, request, callbacks = begin(case)
    with dspy.context(lm=lm, callbacks=[callbacks], track_usage=True):
        program = Ask(case.tool)
        if case.mode == "async":
            return answer(await program.acall(request), lm, callbacks)
        stream = dspy.streamify(program, is_async_program=True)(request)
        return answer_of_stream([event async for event in stream], lm, callbacks)


def begin(case):
    bad = dspy.LM("openai/bad", api_base=case.url, api_key="none", cache=False)
    lm = guarded_lm(bad, case.guard)
    return lm, ask_for(case.tool, lm15.Message.user(case.prompt)), Callbacks()


def ask_for(tool, *messages):
    return lm15.Request(model="openai/bad", messages=messages, tools=(LOOK_UP,) if tool else ())


def answer(prediction, lm, callbacks):
    used = [entry["usage"] for entry in lm.history]
    usage = (sum(u["prompt_tokens"] for u in used), sum(u["completion_tokens"] for u in used))
    seen = [*callbacks.seen, repr(lm.history)]
    return Answer(text=prediction.text, seen=seen, usage=usage)


def answer_of_stream(events, lm, callbacks):
    callbacks.seen += [repr(event) for event in events]
    return answer(events[-1], lm, callbacks)
