"""Reads a draft while it is generated, and releases what the window allows."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from time import perf_counter

from waltzrl.records import Reply
from waltzrl.serving.exchange import NO_DETAILS, Finish, UpstreamDelta, UpstreamReply
from waltzrl.serving.window import Window


@dataclass(slots=True, kw_only=True)
class DraftStream:
    """Where the text of a draft goes while it is generated."""

    window: Window
    release: Callable[[str], None]
    """Called with the text that may be sent now."""
    can_retract: bool = False
    """Mode `speculative`: a `waltz.retract` event can replace text that was sent, so a revision is
    a new reply and need not continue from that text."""
    first_words_milliseconds: float | None = None
    """From the request for the draft until its first text was released; None if none was."""

    async def read(self, deltas: AsyncGenerator[UpstreamDelta, None]) -> UpstreamReply:
        """Read a draft to its end, and release of it what the window allows.

        Raises:
            RequestError: the upstream failed.
        """
        started = perf_counter()
        reply = Reply(text="")
        finish: Finish = "stop"
        details = NO_DETAILS
        texts: list[str] = []
        async with aclosing(deltas):
            async for delta in deltas:
                if delta.text:
                    texts.append(delta.text)
                    self._add(delta.text, started)
                if delta.finish is not None:
                    finish = delta.finish
                    reply = replace(reply, calls=delta.calls)
                if delta.usage is not None:
                    reply = replace(reply, usage=delta.usage)
                details = delta.details or details
        reply = replace(
            reply,
            text="".join(texts),
            finish="length" if finish == "length" else "stop",
            milliseconds=(perf_counter() - started) * 1e3,
        )
        return UpstreamReply(reply=reply, finish=finish, details=details)

    def _add(self, text: str, started: float) -> None:
        if released := self.window.add(text):
            if self.first_words_milliseconds is None:
                self.first_words_milliseconds = (perf_counter() - started) * 1e3
            self.release(released)
