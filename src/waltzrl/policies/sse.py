"""Decoding server-sent events from chunks of any size.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import codecs
import re
from typing import NamedTuple

OPENINGS = (b"{", b"[DONE]")
"""How the data of an event of a model's server begins."""


class ServerSentEvent(NamedTuple):
    """One event."""

    data: str
    name: str = ""
    """The event's name; empty if it has none."""


KEPT_ALIVE = re.compile(r"|null|:.*|[\W_]*(ping|keep\W?_?alive|heart\W?_?beat)[\W_]*", re.I | re.S)
"""The data, or the name, of an event that only keeps a stream alive."""


def says_nothing(event: ServerSentEvent) -> bool:
    """Return whether an event is empty, a comment, or a sign of life, and no part of a reply."""
    named = bool(event.name) and KEPT_ALIVE.fullmatch(event.name) is not None
    return named or KEPT_ALIVE.fullmatch(event.data.strip()) is not None


class EventDecoder:
    """Decodes events from bytes that may be split anywhere, even inside a character or CRLF."""

    def __init__(self) -> None:
        self._line_start: list[bytes] = []
        """The pieces of the line that is not complete yet."""
        self._after_return = False
        """True if the last byte was CR; a LF that follows belongs to the same line end."""
        self._name = b""
        self._data: list[bytes] = []
        self._mark = codecs.BOM_UTF8
        """The mark that may precede the first line; empty after it."""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that end in `chunk`."""
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_return = False
        if not chunk:
            return []
        self._after_return = chunk.endswith(b"\r")
        # That of bytes splits at LF, CR and CRLF only, as the standard does; that of texts at more.
        lines = chunk.splitlines()
        tail = b"" if chunk.endswith((b"\r", b"\n")) else lines.pop()
        if lines:
            lines[0] = b"".join([*self._line_start, lines[0]])
            self._line_start = []
        if tail:
            self._line_start.append(tail)
        return [event for line in lines if (event := self._read_line(line)) is not None]

    def _read_line(self, line: bytes) -> ServerSentEvent | None:
        """Read one whole line; an empty one ends an event, which is returned."""
        line, self._mark = line.removeprefix(self._mark), b""
        if not line:
            return self._end_event()
        field, _, value = line.partition(b":")
        if field == b"data":
            value = value.removeprefix(b" ")
            # Some servers leave out the empty line between two events.
            if value.startswith(OPENINGS) and self._data and self._data[-1].endswith(b"}"):
                event = self._end_event()
                self._data = [value]
                return event
            self._data.append(value)
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        elif field == b"error":  # older versions of llama.cpp name the field after its data
            self._name = field
            self._data.append(value.removeprefix(b" "))
        elif line.startswith(b"{") and not self._data:  # some servers forget `data:`
            self._data.append(line)
            return self._end_event()
        return None

    def _end_event(self) -> ServerSentEvent | None:
        data, name = self._data, self._name
        self._data, self._name = [], b""
        if not data:
            return None
        return ServerSentEvent(
            b"\n".join(data).decode("utf-8", "replace"), name.decode("utf-8", "replace")
        )
