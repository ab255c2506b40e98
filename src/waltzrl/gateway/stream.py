"""Streams an answer: what the window releases at once, the rest after the final review."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from functools import partial

from waltzrl.agents.rules_reviewer import RulesReviewer, beside_others
from waltzrl.errors import RequestError
from waltzrl.gateway.draft_stream import DraftStream, Piece
from waltzrl.gateway.exchange import Answer, GatewayRequest
from waltzrl.gateway.gateway import Gateway, choice_of, internal_error
from waltzrl.gateway.wire.format import StreamWriter, encode_comments

KEEPALIVE_SECONDS = 5.0
"""A keepalive is sent after this silence: clients and proxies drop idle streams."""

log = logging.getLogger(__name__)


Event = tuple[int, Piece | Answer | RequestError]
"""The number of a choice, and what of it to send, its answer, or its error."""


async def stream(
    gateway: Gateway,
    request: GatewayRequest,
    rules: RulesReviewer,
    writer: StreamWriter,
    costs: Callable[[Sequence[Answer]], Iterable[tuple[bytes, bytes]]],
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a streamed answer; closing the generator cancels the upstream.

    The first part comes with the first text that may be sent, or after `KEEPALIVE_SECONDS`. An
    error after that text ends the stream as an event, because its status is 200. The headers
    that `costs` returns for all answers come before the end, as comments.

    Raises:
        RequestError: the upstream or the gateway failed before the first part.
    """
    count = request.chat.n
    events: asyncio.Queue[Event] = asyncio.Queue()
    drafts = [await _open_draft(request, number, rules, events) for number in range(count)]
    tasks = [
        asyncio.create_task(_answer_choice(gateway, request, number, draft, events))
        for number, draft in enumerate(drafts)
    ]
    answers: dict[int, Answer] = {}
    opening = writer.open()
    try:
        while len(answers) < count:
            parts: list[bytes] = []
            for number, event in await _wait_for_events(events):
                if isinstance(event, RequestError):
                    # Nothing has been sent, so the error can still have a status of its own.
                    if opening and not parts:
                        raise event
                    yield b"".join([opening, *parts, writer.error(event, request.context.id)])
                    return
                if isinstance(event, Answer):
                    answers[number] = event
                    parts += _write_end(number, event, drafts[number], writer)
                else:
                    parts += _write_piece(number, event, writer)
            # One write for all events that are waiting; without any, the stream was silent.
            yield opening + (b"".join(parts) or writer.keepalive())
            opening = b""
        ordered = [answers[number] for number in range(count)]
        yield encode_comments(costs(ordered)) + writer.close(ordered)
    finally:
        # They record what was said when they are cancelled, so they are awaited.
        if unfinished := [task for task in tasks if not task.done()]:
            for task in unfinished:
                task.cancel()
            await asyncio.gather(*unfinished, return_exceptions=True)


async def _open_draft(
    request: GatewayRequest, number: int, rules: RulesReviewer, events: asyncio.Queue[Event]
) -> DraftStream:
    """Open the window of a choice, which may read the prompt; its text goes into `events`."""
    mode = request.stream_mode
    assert mode is not None, "this request is streamed"
    prompt = choice_of(request.chat, number).prompt
    window = await beside_others(prompt, 0, partial(mode.behaviour.open_window, rules, prompt))
    return DraftStream(
        window,
        lambda piece: events.put_nowait((number, piece)),
        can_retract=mode.behaviour.can_retract,
        shows_reasoning=request.chat.shows_reasoning,
    )


async def _wait_for_events(events: asyncio.Queue[Event]) -> list[Event]:
    """Wait for events and return all in the queue; none after `KEEPALIVE_SECONDS`."""
    try:
        async with asyncio.timeout(KEEPALIVE_SECONDS):  # `wait_for` would make a task
            batch = [await events.get()]
    except TimeoutError:
        return []
    while not events.empty():
        batch.append(events.get_nowait())
    return batch


async def _answer_choice(
    gateway: Gateway,
    request: GatewayRequest,
    number: int,
    draft: DraftStream,
    events: asyncio.Queue[Event],
) -> None:
    """Answer one choice, and put its text and its end into `events`."""
    try:
        # A buffered draft is read as a stream too, so that what was read of it is known whenever
        # the client leaves.
        events.put_nowait((number, await gateway.choice(request, number, draft)))
    except RequestError as error:
        events.put_nowait((number, error))
    except Exception:  # the boundary of a stream: the client must get an error event
        log.exception("the request failed")
        events.put_nowait((number, internal_error(request.context.id)))


def _write_piece(number: int, piece: Piece, writer: StreamWriter) -> Iterator[bytes]:
    """Yield a part of a choice."""
    if piece.reasoning:
        yield writer.reasoning(number, piece.reasoning)
    if piece.text:
        yield writer.text(number, piece.text)


def _write_end(
    number: int, answer: Answer, draft: DraftStream, writer: StreamWriter
) -> Iterator[bytes]:
    """Yield the rest of a choice, and its end."""
    final, released = answer.reply.text, draft.released.text
    if answer.refused:  # clients that find a refusal do not read the text before it
        if draft.can_retract and released:
            yield writer.retract(number, 0, "")
        yield from _write_piece(number, draft.rest(answer.reply)._replace(text=""), writer)
        yield writer.refusal(number, final.removeprefix(released))
    elif draft.can_retract and not final.startswith(released):
        # The draft was revised: keep the beginning that both share, and replace the rest.
        start = _count_common_characters(final, released)
        yield writer.retract(number, start, final[start:])
    else:
        yield from _write_piece(number, draft.rest(answer.reply), writer)
    yield writer.finish(number, answer)


def _count_common_characters(first: str, second: str) -> int:
    """Return the length of the longest common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
