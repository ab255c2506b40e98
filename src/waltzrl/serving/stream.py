"""Streams an answer: what a window lets go at once, the rest when the verdict is in."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass

from waltzrl.errors import RequestError
from waltzrl.records import Prompt
from waltzrl.serving.exchange import Answer, GatewayRequest, Mode
from waltzrl.serving.gateway import Gateway, internal_error
from waltzrl.serving.window import DraftStream, Window
from waltzrl.serving.wire.format import StreamWriter

KEEPALIVE_SECONDS = 5.0
"""Clients and proxies give a silent stream up; a held one says that it lives."""

log = logging.getLogger(__name__)

WindowFactory = Callable[[Mode, Prompt], Window]
"""Makes the window of a choice."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """How streams leave."""

    mode: Mode
    """Where the client asks for nothing else: buffer, window, speculative or audit."""
    open_window: WindowFactory
    """How much of a growing draft may leave."""


Event = tuple[int, str | Answer | RequestError]
"""A choice, and words of it that may leave, or its end."""


async def stream(
    gateway: Gateway, request: GatewayRequest, open_window: WindowFactory, writer: StreamWriter
) -> AsyncGenerator[bytes, None]:
    """Yield the bytes of a streamed answer; closing the generator cancels the upstream.

    The first bytes carry no words and come at once. A failure on the way is told in the stream.
    """
    count = request.chat.n
    windows = [open_window(request.mode, request.chat.prompt) for _ in range(count)]
    events: asyncio.Queue[Event] = asyncio.Queue()
    tasks = [
        asyncio.create_task(_speak(gateway, request, number, window, events))
        for number, window in enumerate(windows)
    ]
    answers: dict[int, Answer] = {}
    try:
        yield writer.open()
        while len(answers) < count:
            parts: list[bytes] = []
            for number, said in await _happened(events):
                if isinstance(said, RequestError):
                    yield b"".join([*parts, writer.error(said)])
                    return
                if isinstance(said, Answer):
                    answers[number] = said
                    parts += _end(request, number, said, windows[number], writer)
                else:
                    parts.append(writer.text(number, said))
            yield b"".join(parts) or writer.keepalive()
        yield writer.close([answers[number] for number in range(count)])
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _happened(events: asyncio.Queue[Event]) -> list[Event]:
    """Wait for events and return all that there are; none after a while of silence."""
    try:
        happened = [await asyncio.wait_for(events.get(), KEEPALIVE_SECONDS)]
    except TimeoutError:
        return []
    while not events.empty():
        happened.append(events.get_nowait())
    return happened


async def _speak(
    gateway: Gateway,
    request: GatewayRequest,
    number: int,
    window: Window,
    events: asyncio.Queue[Event],
) -> None:
    """Answer one choice, and put what happens into `events`."""
    draft_stream = DraftStream(
        window=window,
        release=lambda text: events.put_nowait((number, text)),
        can_retract=request.mode == "speculative",
    )
    try:
        # A buffered draft is requested whole: none of it is sent before the verdict anyway.
        stream = None if request.mode == "buffer" else draft_stream
        events.put_nowait((number, await gateway.choice(request, number, stream)))
    except RequestError as error:
        events.put_nowait((number, error))
    except Exception:  # the boundary of a stream: its client must hear of its end
        log.exception("request %s failed", request.chat.prompt.id)
        events.put_nowait((number, internal_error(request.chat.prompt.id)))


def _end(
    request: GatewayRequest, number: int, answer: Answer, window: Window, writer: StreamWriter
) -> Iterator[bytes]:
    """Yield what is still to be sent of a choice, and its end."""
    final = answer.reply.text
    if request.mode == "speculative" and not final.startswith(window.released):
        start = _common(final, window.released)
        yield writer.retract(number, start, final[start:])
    elif rest := window.rest(final):
        yield writer.text(number, rest)
    if answer.reply.calls:
        yield writer.calls(number, answer.reply.calls)
    yield writer.finish(number, answer)


def _common(one: str, other: str) -> int:
    """Return how many characters two texts begin with in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
