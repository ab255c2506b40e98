"""OpenAI Agents SDK: a guarded model, and guardrails that end a run.

Agent(model=GuardedModel(model, guard), input_guardrails=[request_guardrail(guard)], ...)
"""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeAlias
from uuid import uuid4

from waltzrl.gateway.guard import Guard, read_prompt
from waltzrl.records import Feedback, Reply
from waltzrl_integrations import drafts

with drafts.needs("the OpenAI Agents SDK", "openai-agents>=0.20"):
    from openai.types import responses

    import agents

Item: TypeAlias = dict[str, object]

BEFORE_DELTAS: dict[str, Item] = {
    "message": {"content": [], "status": "in_progress"},
    "function_call": {"arguments": "", "status": "in_progress"},
    "reasoning": {"summary": []},
}
"""What is still empty of an item when its stream begins, by its type."""


class GuardedModel(agents.Model):
    """A model whose replies the guard has reviewed, and the results of tools it reads.

    The model's own calls are not traced: a trace would show drafts.
    """

    # What a run asks of a model beside replies.
    close = property(attrgetter("model.close"))
    get_retry_advice = property(attrgetter("model.get_retry_advice"))
    _cleanup_on_run_end = property(attrgetter("model._cleanup_on_run_end"))

    def __init__(self, model: agents.Model, guard: Guard) -> None:
        self.model = model
        self.guard = guard

    async def get_response(
        self,
        system_instructions: str | None,
        input: str | list[Item],  # noqa: A002 - the SDK's name
        *settings: Any,
        **more: Any,
    ) -> agents.ModelResponse:
        asked = [await self._withhold_output(item) for item in _list_items(input)]
        settings = tuple(_disable_tracing(setting) for setting in settings)
        more = {name: _disable_tracing(setting) for name, setting in more.items()}
        response = await self.model.get_response(system_instructions, asked, *settings, **more)
        system: Item = {"role": "system", "content": system_instructions or ""}
        turns = [system, *(_convert_item(item) for item in asked)]
        text, added = await drafts.revise(self.guard, turns, _convert_output(response.output))
        read, written = added.input_tokens, added.output_tokens
        response.usage.add(
            agents.Usage(input_tokens=read, output_tokens=written, total_tokens=read + written)
        )
        return response if text is None else replace(response, output=[_make_output_message(text)])

    async def _withhold_output(self, item: Item) -> Item:
        if await drafts.withholds(self.guard, item.get("output")):
            return item | {"output": drafts.WITHHELD}
        return item

    async def stream_response(
        self, *settings: Any, **more: Any
    ) -> AsyncIterator[responses.ResponseStreamEvent]:
        response = await self.get_response(*settings, **more)
        for number, event in enumerate(_yield_stream_events(response)):
            event.sequence_number = number
            yield event


def request_guardrail(guard: Guard) -> agents.InputGuardrail:
    """Return a guardrail that ends a run before its model reads a dangerous request."""

    async def check(_: object, __: object, items: str | list[Item]) -> object:
        prompt = read_prompt([_convert_item(item) for item in _list_items(items)])
        return _make_outcome(await drafts.call_guard(guard, Guard.assess, prompt))

    return agents.InputGuardrail(check, name="waltzrl", run_in_parallel=False)


def reply_guardrail(guard: Guard) -> agents.OutputGuardrail:
    """Return a guardrail that ends a run whose final output is unsafe, and revises nothing."""

    async def check(context: agents.RunContextWrapper, _: object, output: object) -> object:
        prompt = read_prompt([_convert_item(item) for item in _list_items(context.turn_input)])
        return _make_outcome(await drafts.call_guard(guard, Guard.review, prompt, _as_text(output)))

    return agents.OutputGuardrail(check, name="waltzrl")


def _make_outcome(feedback: Feedback) -> agents.GuardrailFunctionOutput:
    """Return what a guardrail answers; feedback that cannot be read counts as unsafe."""
    unsafe = feedback.refuses or not feedback.well_formed
    return agents.GuardrailFunctionOutput(output_info=feedback, tripwire_triggered=unsafe)


def _disable_tracing(setting: object) -> object:
    return agents.ModelTracing.DISABLED if isinstance(setting, agents.ModelTracing) else setting


def _list_items(items: str | list[Item]) -> list[Item]:
    return [{"role": "user", "content": items}] if isinstance(items, str) else list(items)


def _convert_item(item: Item) -> Item:
    """Return an item of the Responses API as a message of chat completions."""
    if "role" in item:
        return {"role": item["role"], "content": item["content"]}
    if "output" in item:
        content = drafts.words_of(item["output"])
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    if item.get("type") == "function_call":
        function = {"name": item["name"], "arguments": item["arguments"]}
        call = {"id": item["call_id"], "type": "function", "function": function}
        return {"role": "assistant", "content": None, "tool_calls": [call]}
    # Such as reasoning, and calls of the API's own tools, which chat completions do not know.
    return {"role": "assistant", "content": _as_text(item)}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


def _convert_output(output: list[responses.ResponseOutputItem]) -> Reply:
    """Read all that a model's output says: its text, its reasoning, and calls of any kind."""
    text, reasoning, calls = [], [], []
    for item in output:
        if item.type == "message":
            text += [part.refusal if part.type == "refusal" else part.text for part in item.content]
        elif item.type == "reasoning":
            reasoning += [part.text for part in [*item.summary, *(item.content or [])]]
        elif item.type == "function_call":
            calls.append((item.call_id, item.name, item.arguments))
        else:
            calls.append((item.id, item.type, item.model_dump_json()))
    return drafts.reply_of("\n".join(text), "\n".join(reasoning), calls)


def _make_output_message(text: str) -> responses.ResponseOutputMessage:
    part = responses.ResponseOutputText(text=text, annotations=[], type="output_text")
    # Ids are unique, because a conversation may hold several of these messages.
    return responses.ResponseOutputMessage(
        id=f"msg_{uuid4().hex}",
        content=[part],
        role="assistant",
        status="completed",
        type="message",
    )


def _yield_stream_events(response: agents.ModelResponse) -> Iterator[responses.ResponseStreamEvent]:
    """Yield the events of the Responses API, whose clients build each item from them."""
    counts = {name: getattr(response.usage, name) for name in responses.ResponseUsage.model_fields}
    usage = responses.ResponseUsage(**counts)
    id_ = response.response_id or "resp_waltzrl"
    # Without validation, because a response has required fields that nobody knows here.
    begun = responses.Response.construct(id=id_, output=[], status="in_progress")
    done = responses.Response.construct(
        id=id_, output=response.output, usage=usage, status="completed"
    )
    yield _make_event(responses.ResponseCreatedEvent, "created", response=begun)
    for place, item in enumerate(response.output):
        empty = item.model_copy(update=BEFORE_DELTAS.get(item.type, {}))
        of_item = {"item_id": item.id or "", "output_index": place}
        added, ended = responses.ResponseOutputItemAddedEvent, responses.ResponseOutputItemDoneEvent
        yield _make_event(added, "output_item.added", item=empty, output_index=place)
        if item.type == "message":
            for index, part in enumerate(item.content):
                yield from _yield_part_events(part, of_item | {"content_index": index})
        elif item.type == "function_call":
            arguments = responses.ResponseFunctionCallArgumentsDeltaEvent
            kind = "function_call_arguments.delta"
            yield _make_event(arguments, kind, delta=item.arguments, **of_item)
        elif item.type == "reasoning":
            for index, summary in enumerate(item.summary):
                yield from _yield_summary_events(summary, of_item | {"summary_index": index})
        yield _make_event(ended, "output_item.done", item=item, output_index=place)
    yield _make_event(responses.ResponseCompletedEvent, "completed", response=done)


def _yield_part_events(
    part: responses.ResponseOutputText | responses.ResponseOutputRefusal, where: Item
) -> Iterator[responses.ResponseStreamEvent]:
    """Yield the events of a part of a message: its text or a refusal, in pieces."""
    added, ended = responses.ResponseContentPartAddedEvent, responses.ResponseContentPartDoneEvent
    name, kind, more = "text", "output_text.delta", Item(logprobs=[])
    delta: Any = responses.ResponseTextDeltaEvent
    if part.type == "refusal":
        name, kind, more = "refusal", "refusal.delta", Item()
        delta = responses.ResponseRefusalDeltaEvent
    empty = part.model_copy(update={name: ""})
    yield _make_event(added, "content_part.added", part=empty, **where)
    for piece in drafts.cut_pieces(getattr(part, name)):
        yield _make_event(delta, kind, delta=piece, **more, **where)
    yield _make_event(ended, "content_part.done", part=part, **where)


def _yield_summary_events(summary: Any, where: Item) -> Iterator[responses.ResponseStreamEvent]:
    added = responses.ResponseReasoningSummaryPartAddedEvent
    delta = responses.ResponseReasoningSummaryTextDeltaEvent
    ended = responses.ResponseReasoningSummaryPartDoneEvent
    empty, whole = ({"type": "summary_text", "text": text} for text in ("", summary.text))
    yield _make_event(added, "reasoning_summary_part.added", part=empty, **where)
    yield _make_event(delta, "reasoning_summary_text.delta", delta=summary.text, **where)
    yield _make_event(ended, "reasoning_summary_part.done", part=whole, **where)


def _make_event(event: Any, kind: str, **fields: object) -> responses.ResponseStreamEvent:
    # `stream_response` numbers the events.
    return event(type=f"response.{kind}", sequence_number=0, **fields)
