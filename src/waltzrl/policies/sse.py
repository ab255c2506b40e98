"""Reading server-sent events, whatever pieces they come in.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """One event."""

    data: str
    name: str = ""
    """Empty when the server gave none."""


class EventDecoder:
    """Reads events from bytes that may be cut anywhere, inside a character or a line end too."""

    def __init__(self) -> None:
        self._begun: list[bytes] = []
        """Pieces of the line that has not ended yet."""
        self._after_return = False
        """The last byte was CR: a LF that follows belongs to it."""
        self._name = b""
        self._data: list[bytes] = []

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that end in `chunk`."""
        if self._after_return and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_return = False
        if not chunk:
            return []
        self._after_return = chunk.endswith(b"\r")
        lines = chunk.splitlines()
        tail = b"" if chunk.endswith((b"\r", b"\n")) else lines.pop()
        if lines:
            lines[0] = b"".join([*self._begun, lines[0]])
            self._begun = []
        if tail:
            self._begun.append(tail)
        return [found for line in lines if (found := self._line(line)) is not None]

    def _line(self, line: bytes) -> ServerSentEvent | None:
        """Take one whole line; an empty one ends an event."""
        if not line:
            return self._dispatch()
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field == b"event":
            self._name = value.removeprefix(b" ")
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, name = self._data, self._name
        self._data, self._name = [], b""
        if not data:
            return None
        return ServerSentEvent(
            b"\n".join(data).decode("utf-8", "replace"), name.decode("utf-8", "replace")
        )
