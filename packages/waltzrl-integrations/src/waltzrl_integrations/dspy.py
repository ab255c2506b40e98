"""DSPy: a guarded language model.

dspy.configure(lm=guarded_lm(dspy.LM("openai/qwen"), guard))
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace

from waltzrl.gateway.guard import Guard
from waltzrl.records import Message, Reply
from waltzrl_integrations import drafts

with drafts.needs("DSPy", "dspy>=3.4"):
    import dspy
    from dspy import lm15 as theirs
    from dspy.clients.backend_selection import CLIENT_KEYS


def guarded_lm(lm: dspy.LM, guard: Guard) -> dspy.LM:
    """Return an LM whose replies the guard has reviewed, and the results of tools it reads.

    `lm` caches its drafts as before. What is returned is not cached, because it would share the
    drafts' place in DSPy's cache.
    """
    options = {name: value for name, value in lm.kwargs.items() if name not in CLIENT_KEYS}
    unseen = lm.copy()
    unseen.callbacks = []
    # Caching and retries are left to `lm`, which this one asks.
    return dspy.LM(
        lm.model,
        cache=False,
        num_retries=0,
        callbacks=lm.callbacks,
        engine=_Engine(unseen, guard),
        async_engine=_AsyncEngine(unseen, guard),
        **options,
    )


class _Engine:
    """What the guarded LM asks for replies."""

    def __init__(self, lm: dspy.LM, guard: Guard) -> None:
        self._lm, self._guard = lm, guard
        self.supports_function_calling = lm.supports_function_calling
        self.supports_response_schema = lm.supports_response_schema
        self.supported_params = lm.supported_params

    def complete(self, request: theirs.Request) -> theirs.Response:
        return drafts.run_blocking(_answer_request, self._guard, self._lm, request)

    def stream(self, request: theirs.Request) -> Iterator[object]:
        yield from _yield_events(self.complete(request))


class _AsyncEngine:
    def __init__(self, lm: dspy.LM, guard: Guard) -> None:
        self._lm, self._guard = lm, guard

    async def complete(self, request: theirs.Request) -> theirs.Response:
        return await _answer_request(self._guard, self._lm.acall, request)

    async def stream(self, request: theirs.Request) -> AsyncIterator[object]:
        for event in _yield_events(await self.complete(request)):
            yield event


async def _answer_request(
    guard: drafts.AnyGuard, model: drafts.Model, request: theirs.Request
) -> theirs.Response:
    messages = [await _withhold_results(guard, message) for message in request.messages]
    # Each of these would show the draft, or count its tokens a second time.
    with dspy.context(callbacks=[], disable_history=True, usage_tracker=None, send_stream=None):
        draft = await drafts.await_draft(model, replace(request, messages=tuple(messages)))
    system = request.system or ""
    instructions = system if isinstance(system, str) else _join_text_parts(system)
    turns = [Message(role="system", content=instructions)]
    turns += [turn for message in messages for turn in _convert_lm_message(message)]
    text, added = await drafts.revise(guard, turns, _convert_parts(draft.message.parts))
    counts = {name: getattr(draft.usage, name) for name in drafts.RESPONSES_COUNTS}
    used = replace(draft.usage, **drafts.add_tokens(counts, added, drafts.RESPONSES_COUNTS))
    if text is None:
        return replace(draft, usage=used)
    message = theirs.Message.assistant(text)
    return theirs.Response(
        id=draft.id, model=draft.model, message=message, finish_reason="stop", usage=used
    )


async def _withhold_results(guard: drafts.AnyGuard, message: theirs.Message) -> theirs.Message:
    parts = tuple([await _withhold_part(guard, part) for part in message.parts])
    if all(part is before for part, before in zip(parts, message.parts, strict=True)):
        return message
    return replace(message, parts=parts)


async def _withhold_part(guard: drafts.AnyGuard, part: object) -> object:
    if not isinstance(part, theirs.ToolResultPart):
        return part
    if not await drafts.withholds(guard, _join_result_pieces(part)):
        return part
    return replace(part, content=(theirs.TextPart(drafts.WITHHELD),))


def _join_result_pieces(part: theirs.ToolResultPart) -> str:
    """Return the words of a tool's result: of texts, citations and data."""
    return drafts.words_of([_convert_piece(piece) for piece in part.content])


def _convert_piece(piece: object) -> dict[str, object]:
    fields = {name: getattr(piece, name, None) for name in ("type", "text", "title", "value")}
    return {name: value for name, value in fields.items() if value is not None}


def _convert_lm_message(message: theirs.Message) -> list[Message]:
    results = [part for part in message.parts if isinstance(part, theirs.ToolResultPart)]
    texts = [(result.id, _join_result_pieces(result)) for result in results]
    return drafts.turns_of(message.role, _convert_parts(message.parts), texts)


def _convert_parts(parts: Sequence[object]) -> Reply:
    thoughts = [part.text for part in parts if isinstance(part, theirs.ThinkingPart)]
    calls = [(p.id, p.name, p.input) for p in parts if isinstance(p, theirs.ToolCallPart)]
    return drafts.reply_of(_join_text_parts(parts), "\n".join(thoughts), calls)


def _join_text_parts(parts: Sequence[object]) -> str:
    return "".join(part.text for part in parts if isinstance(part, theirs.TextPart))


def _yield_events(response: theirs.Response) -> Iterator[object]:
    for event in theirs.response_to_events(response):
        delta = getattr(event, "delta", None)
        if not isinstance(delta, theirs.TextDelta) or delta.logprobs:
            yield event
            continue
        for piece in drafts.cut_pieces(delta.text):
            yield replace(event, delta=replace(delta, text=piece))
