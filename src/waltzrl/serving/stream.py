"""Streams an answer: what the window releases at once, the rest after the final review."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

from waltzrl.errors import RequestError
from waltzrl.records import Prompt
from waltzrl.serving.draft_stream import DraftStream
from waltzrl.serving.exchange import Answer, GatewayRequest, Mode
from waltzrl.serving.gateway import Gateway, choice_of, internal_error
from waltzrl.serving.window import Window
from waltzrl.serving.wire.format import StreamWriter

KEEPALIVE_SECONDS = 5.0
"""A keepalive is sent after this silence: clients and proxies drop idle streams."""

log = logging.getLogger(__name__)

WindowFactory = Callable[[Mode, Prompt], Window]
"""Returns a new window for a choice."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How streams are sent."""

    mode: Mode
    """Default: buffer, window, speculative or audit."""
    open_window: WindowFactory
    """Decides how much of a draft is sent before its final review."""


Event = tuple[int, str | Answer | RequestError]
"""Number of a choice, and text of it to send, its answer, or its error."""


async def stream(
    gateway: Gateway, request: GatewayRequest, open_window: WindowFactory, writer: StreamWriter
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a streamed answer; closing the generator cancels the upstream.

    The opening bytes carry no text and are sent at once. An error ends the stream as an event,
    because the status 200 has been sent by then.
    """
    count = request.chat.n
    windows = [
        open_window(request.mode, choice_of(request.chat, number).prompt) for number in range(count)
    ]
    events: asyncio.Queue[Event] = asyncio.Queue()
    tasks = [
        asyncio.create_task(_answer(gateway, request, number, window, events))
        for number, window in enumerate(windows)
    ]
    answers: dict[int, Answer] = {}
    try:
        yield writer.open()
        while len(answers) < count:
            parts: list[bytes] = []
            for number, event in await _next_events(events):
                if isinstance(event, RequestError):
                    yield b"".join([*parts, writer.error(event, request.context.id)])
                    return
                if isinstance(event, Answer):
                    answers[number] = event
                    parts += _end(request, number, event, windows[number], writer)
                else:
                    parts.append(writer.text(number, event))
            # One write for all events that are waiting; without any, the stream was silent.
            yield b"".join(parts) or writer.keepalive()
        yield writer.close([answers[number] for number in range(count)])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _next_events(events: asyncio.Queue[Event]) -> list[Event]:
    """Wait for events and return all in the queue; none after `KEEPALIVE_SECONDS`."""
    try:
        batch = [await asyncio.wait_for(events.get(), KEEPALIVE_SECONDS)]
    except TimeoutError:
        return []
    while not events.empty():
        batch.append(events.get_nowait())
    return batch


async def _answer(
    gateway: Gateway,
    request: GatewayRequest,
    number: int,
    window: Window,
    events: asyncio.Queue[Event],
) -> None:
    """Answer one choice, and put its text and its end into `events`."""
    draft_stream = DraftStream(
        window=window,
        release=lambda text: events.put_nowait((number, text)),
        can_retract=request.mode == "speculative",
    )
    try:
        # Nothing of a buffered draft is sent before its review, so it need not be streamed.
        stream = None if request.mode == "buffer" else draft_stream
        events.put_nowait((number, await gateway.choice(request, number, stream)))
    except RequestError as error:
        events.put_nowait((number, error))
    except Exception:  # the boundary of a stream: the client must get an error event
        log.exception("the request failed")
        events.put_nowait((number, internal_error(request.context.id)))


def _end(
    request: GatewayRequest, number: int, answer: Answer, window: Window, writer: StreamWriter
) -> Iterator[bytes]:
    """Yield the rest of a choice, and its end."""
    final = answer.reply.text
    if request.mode == "speculative" and not final.startswith(window.released):
        # The draft was revised: keep the beginning that both share, and replace the rest.
        start = _common_length(final, window.released)
        yield writer.retract(number, start, final[start:])
    elif rest := window.rest(final):
        yield writer.text(number, rest)
    yield writer.finish(number, answer)


def _common_length(first: str, second: str) -> int:
    """Return the length of the longest common beginning."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
