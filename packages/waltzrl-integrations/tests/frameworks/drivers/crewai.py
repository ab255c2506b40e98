"""A guarded LLM of CrewAI, with the tool called by hand as crews call it."""

import json

from crewai import LLM
from crewai.events import crewai_event_bus
from crewai.events.types.llm_events import LLMCallCompletedEvent, LLMStreamChunkEvent

from drivers import Answer
from waltzrl_integrations.crewai import GuardedCrewLLM

PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
LOOK_UP = {"name": "look_up", "description": "Look it up.", "parameters": PARAMETERS}


def ask(case):
    llm, options, messages = begin(case)
    with crewai_event_bus.scoped_handlers():
        seen = listen()
        while isinstance(calls := llm.call(messages, **options), list):
            messages += called(case, calls)
        crewai_event_bus.flush()
    return answer(calls, seen, llm)


async def aask(case):
    llm, options, messages = begin(case)
    with crewai_event_bus.scoped_handlers():
        seen = listen()
        while isinstance(calls := await llm.acall(messages, **options), list):
            messages += called(case, calls)
        crewai_event_bus.flush()
    return answer(calls, seen, llm)


def begin(case):
    bad = LLM(
        model="bad",
        provider="openai",
        base_url=case.url,
        api_key="none",
        stream="stream" in case.mode,
    )
    options = {"tools": [{"type": "function", "function": LOOK_UP}]} if case.tool else {}
    return GuardedCrewLLM(bad, case.guard), options, [{"role": "user", "content": case.prompt}]


def listen():
    """Note whatever CrewAI's event bus tells about replies."""
    seen = []

    @crewai_event_bus.on(LLMStreamChunkEvent)
    def on_chunk(_source, event):
        seen.append(event.chunk)

    @crewai_event_bus.on(LLMCallCompletedEvent)
    def on_completed(_source, event):
        seen.append(repr(event.response))

    return seen


def called(case, calls):
    (call,) = calls
    result = case.tool(**json.loads(call.function.arguments))
    yield {"role": "assistant", "content": None, "tool_calls": [call.model_dump()]}
    yield {"role": "tool", "tool_call_id": call.id, "content": result}


def answer(text, seen, llm):
    used = llm.get_token_usage_summary()
    return Answer(text=text, seen=seen, usage=(used.prompt_tokens, used.completion_tokens))
