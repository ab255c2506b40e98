"""The seam between the gateway and an API: how its requests, replies, streams and errors look."""

from collections.abc import Sequence
from typing import Protocol

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, Api, ChatRequest


class StreamWriter(Protocol):
    """Spells one stream; it numbers events and knows what was opened. Returns bytes to send."""

    def open(self) -> bytes:
        """Return what can be said before any word: role chunk, `message_start` ..."""
        ...

    def keepalive(self) -> bytes:
        """Return something that clients pass over, for the time while a reply is held."""
        ...

    def text(self, choice: int, delta: str) -> bytes:
        """Return the next words of a choice; nothing is opened for an empty string."""
        ...

    def calls(self, choice: int, calls: Sequence[ToolCall]) -> bytes:
        """Return whole tool calls of a choice; at most once a choice, after its text."""
        ...

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Return the vendor event `waltz.retract`: what follows character `start` is replaced."""
        ...

    def finish(self, choice: int, answer: Answer) -> bytes:
        """Return the end of a choice."""
        ...

    def close(self, answers: Sequence[Answer]) -> bytes:
        """Return the end of the stream, with token counts where the API has them."""
        ...

    def problem(self, problem: RequestError) -> bytes:
        """Return an error in the middle of the stream, and the stream's end."""
        ...


class WireFormat(Protocol):
    """One API."""

    api: Api

    def read(self, raw: bytes, request_id: str) -> ChatRequest:
        """Read a request.

        Args:
            raw: the body as it came.
            request_id: becomes the prompt's id and the reply's.

        Raises:
            RequestError: 400, saying which field is wrong and what is needed.
        """
        ...

    def write(self, chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
        """Return the body of a reply that is not streamed, one answer a choice."""
        ...

    def writer(self, chat: ChatRequest) -> StreamWriter:
        """Return the writer of this request's stream."""
        ...

    def problem(self, problem: RequestError, request_id: str = "") -> bytes:
        """Return the body of an error; `request_id` where the API repeats it there."""
        ...
