"""DSPy: a guarded language model.

dspy.configure(lm=guarded_lm(dspy.LM("openai/qwen"), guard))
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import replace

from waltzrl.guard import Guard
from waltzrl.integrations import drafts
from waltzrl.records import Message, Reply, Role

with drafts.needs("DSPy", "dspy>=3.4"):
    import dspy
    from dspy import lm15 as theirs
    from dspy.clients.backend_selection import CLIENT_KEYS

COUNTS = ("input_tokens", "output_tokens", "total_tokens")


def guarded_lm(lm: dspy.LM, guard: Guard) -> dspy.LM:
    """Return an LM whose replies the guard has reviewed, and the results of tools it reads.

    `lm` caches its drafts as before. What is returned is not cached, because it would share the
    drafts' place in DSPy's cache.
    """
    options = {name: value for name, value in lm.kwargs.items() if name not in CLIENT_KEYS}
    unseen = lm.copy()
    unseen.callbacks = []
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
        async def draft_of(read: theirs.Request) -> theirs.Response:
            with _unobserved():
                return self._lm(read)

        return drafts.without_waiting(_answer(drafts.BlockingGuard(self._guard), draft_of, request))

    def stream(self, request: theirs.Request) -> Iterator[object]:
        yield from _events(self.complete(request))


class _AsyncEngine:
    def __init__(self, lm: dspy.LM, guard: Guard) -> None:
        self._lm, self._guard = lm, guard

    async def complete(self, request: theirs.Request) -> theirs.Response:
        async def draft_of(read: theirs.Request) -> theirs.Response:
            with _unobserved():
                return await self._lm.acall(read)

        return await _answer(self._guard, draft_of, request)

    async def stream(self, request: theirs.Request) -> AsyncIterator[object]:
        for event in _events(await self.complete(request)):
            yield event


def _unobserved() -> dspy.context:
    """Hide a call from the program's callbacks, history, usage and stream."""
    return dspy.context(callbacks=[], disable_history=True, usage_tracker=None, send_stream=None)


async def _answer(
    guard: drafts.AnyGuard,
    draft_of: Callable[[theirs.Request], Awaitable[theirs.Response]],
    request: theirs.Request,
) -> theirs.Response:
    messages = [await _read(guard, message) for message in request.messages]
    draft = await draft_of(replace(request, messages=tuple(messages)))
    system = request.system or ()
    instructions = system if isinstance(system, str) else "".join(part.text for part in system)
    turns = [Message(role="system", content=instructions)] if instructions else []
    turns += [turn for message in messages for turn in _turns(message)]
    collaboration = await drafts.revise(guard, turns, _reply(draft.message.parts))
    counts = {name: getattr(draft.usage, name) for name in COUNTS}
    added = drafts.added_usage(collaboration)
    used = replace(draft.usage, **drafts.add_tokens(counts, added, COUNTS))
    if collaboration.decision == "draft":
        return replace(draft, usage=used)
    message = theirs.Message.assistant(collaboration.final.text)
    return theirs.Response(
        id=draft.id, model=draft.model, message=message, finish_reason="stop", usage=used
    )


async def _read(guard: drafts.AnyGuard, message: theirs.Message) -> theirs.Message:
    parts = [
        replace(
            part, content=(theirs.TextPart(await drafts.read_result(guard, _text(part.content))),)
        )
        if isinstance(part, theirs.ToolResultPart)
        else part
        for part in message.parts
    ]
    return replace(message, parts=tuple(parts))


def _turns(message: theirs.Message) -> list[Message]:
    results = [part for part in message.parts if isinstance(part, theirs.ToolResultPart)]
    if results:
        return [Message(role="tool", content=_text(r.content), call_id=r.id) for r in results]
    reply = _reply(message.parts)
    role: Role = "user"
    if message.role != "user":
        role = "assistant" if message.role == "assistant" else "system"  # else a developer's
    return [Message(role=role, content=reply.text, calls=reply.calls)]


def _reply(parts: Sequence[object]) -> Reply:
    thoughts = [part.text for part in parts if isinstance(part, theirs.ThinkingPart)]
    calls = [(p.id, p.name, p.input) for p in parts if isinstance(p, theirs.ToolCallPart)]
    return drafts.reply_of(_text(parts), "\n".join(thoughts), calls)


def _text(parts: Sequence[object]) -> str:
    return "".join(part.text for part in parts if isinstance(part, theirs.TextPart))


def _events(response: theirs.Response) -> Iterator[object]:
    for event in theirs.response_to_events(response):
        delta = getattr(event, "delta", None)
        if not isinstance(delta, theirs.TextDelta) or delta.logprobs:
            yield event
            continue
        for piece in drafts.pieces(delta.text):
            yield replace(event, delta=replace(delta, text=piece))
