"""Guarded calls of LiteLLM, with the tool called by hand."""

import json

import litellm
from litellm.integrations.custom_logger import CustomLogger

from drivers import Answer
from waltzrl_integrations.litellm import GuardedLiteLLM

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LOOK_UP = {"name": "look_up", "description": "Look it up.", "parameters": PARAMETERS}


class Callbacks(CustomLogger):
    """Notes whatever LiteLLM tells about replies."""

    def __init__(self):
        self.seen = []

    def log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.seen.append(repr(response_obj))

    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        self.seen.append(repr(response_obj))

    def log_stream_event(self, kwargs, response_obj, start_time, end_time):
        self.seen.append(repr(response_obj))

    async def async_log_stream_event(self, kwargs, response_obj, start_time, end_time):
        self.seen.append(repr(response_obj))


def ask(case):
    call, request, callbacks = begin(case)
    while True:
        said = call.completion(**request)
        if case.mode == "stream":
            said = joined(list(said), callbacks)
        if not advance(case, request, said):
            return answer(request, said, callbacks)


async def aask(case):
    call, request, callbacks = begin(case)
    while True:
        said = await call.acompletion(**request)
        if case.mode == "astream":
            said = joined([chunk async for chunk in said], callbacks)
        if not advance(case, request, said):
            return answer(request, said, callbacks)


def begin(case):
    callbacks = Callbacks()
    litellm.callbacks = [callbacks]
    request = {
        "model": "openai/bad",
        "api_base": case.url,
        "api_key": "none",
        "messages": [{"role": "user", "content": case.prompt}],
    }
    if "stream" in case.mode:
        request |= {"stream": True, "stream_options": {"include_usage": True}}
    if case.tool:
        request["tools"] = [{"type": "function", "function": LOOK_UP}]
    return GuardedLiteLLM(case.guard), request, callbacks


def joined(chunks, callbacks):
    callbacks.seen += [repr(chunk) for chunk in chunks]
    return litellm.stream_chunk_builder(chunks)


def advance(case, request, said):
    """Call the tools that were asked for; return whether there were any."""
    message = said.choices[0].message
    request["messages"].append(message.model_dump())
    for call in message.tool_calls or ():
        result = case.tool(**json.loads(call.function.arguments))
        turn = {"role": "tool", "tool_call_id": call.id, "content": result}
        request["messages"].append(turn)
    return bool(message.tool_calls)


def answer(request, said, callbacks):
    usage = (said.usage.prompt_tokens, said.usage.completion_tokens)
    return Answer(text=said.choices[0].message.content, seen=callbacks.seen, usage=usage)
