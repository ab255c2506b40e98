"""Reads a draft while it is generated, and releases what the window allows.

The window sees a draft as the reviewers do: its reasoning, a line break, its text. Reasoning that
follows text is dropped: no API has a place for it.
"""

import re
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import replace
from time import perf_counter
from typing import NamedTuple

from waltzrl.agents.fence import LONGEST_TEXT, fence
from waltzrl.gateway.exchange import (
    NO_DETAILS,
    Deltas,
    Fallback,
    Finish,
    UpstreamDelta,
    UpstreamReply,
)
from waltzrl.gateway.stream_modes import Window
from waltzrl.records import Message, Prompt, Reply, ToolCall, Usage, estimate_usage

CONTINUE = """

The user has already read how your last reply begins, up to here:
{released}
Go on from exactly there and do not repeat it."""
FENCE = re.compile(r"^ {0,3}```", re.MULTILINE)


class Piece(NamedTuple):
    """A part of a reply; its reasoning precedes its text."""

    reasoning: str
    text: str

    @property
    def full_text(self) -> str:
        """As reviewers read a reply: its reasoning, a line break, its text."""
        return f"{self.reasoning}\n{self.text}" if self.reasoning else self.text


class DraftStream:
    """Where a draft goes while it is generated."""

    def __init__(
        self,
        window: Window,
        release: Callable[[Piece], None],
        *,
        can_retract: bool = False,
        shows_reasoning: bool = True,
    ) -> None:
        """Start with an empty draft.

        Args:
            window: decides how much of the draft may be sent.
            release: called with what may be sent now.
            can_retract: a `waltz.retract` event can replace text that was sent, so a revision is
                a new reply and need not continue from that text. Reasoning cannot be retracted,
                so a draft that has any is held back.
            shows_reasoning: False drops the reasoning.
        """
        self.can_retract = can_retract
        self._shows_reasoning = shows_reasoning
        self.first_words_milliseconds: float | None = None
        """The time from the request for the draft until its first words were released."""
        self.fallback: Fallback | None = None
        """What writes the draft, if that is not the upstream of its model."""
        self._window = window
        self._release = release
        self._reasoning: list[str] = []
        self._text: list[str] = []
        self._reasoned = 0
        """The number of characters of reasoning that the window saw."""
        self._sent = 0
        """The number of characters that the window released."""
        self._refused = False
        """True if a text came in the field for refusals: from there on the draft waits for its
        review.
        """
        self._held_back = False
        self._parts: list[str] = []
        """All reasoning and text that was read, also what is dropped: all of it costs tokens."""
        self._read_calls: Callable[[], tuple[ToolCall, ...]] = tuple
        """Returns the tool calls as far as they were read."""
        self._usage: Usage | None = None
        """The server's last token counts."""
        self._counts_all = False
        """True if nothing was read after these counts."""
        self._started = 0.0

    @property
    def released(self) -> Piece:
        """The beginning of the draft that has been sent."""
        reasoning, text = "".join(self._reasoning), "".join(self._text)
        in_text = max(0, self._sent - self._text_start)
        return Piece(reasoning[: min(self._sent, self._reasoned)], text[:in_text])

    def hold_back(self) -> None:
        """Send nothing of the draft before its review."""
        self._held_back = True

    async def read(self, deltas: Deltas) -> UpstreamReply:
        """Read a draft to its end, and release of it what the window allows.

        Raises:
            RequestError: the upstream failed.
        """
        self._started = perf_counter()
        finish: Finish = "stop"
        details = NO_DETAILS
        async with aclosing(deltas):
            async for delta in deltas:
                self._note(delta)
                self.fallback = delta.fallback or self.fallback
                reasoning = delta.reasoning if self._shows_reasoning else ""
                self._refused = self._refused or delta.refused
                released = (delta.text or reasoning) and self._add(reasoning, delta.text)
                if released and self.first_words_milliseconds is None:
                    self.first_words_milliseconds = (perf_counter() - self._started) * 1e3
                finish = delta.finish or finish
                details = delta.details or details
        reply = replace(
            self._reply(), usage=self._counted, finish="length" if finish == "length" else "stop"
        )
        return UpstreamReply(
            reply=reply,
            finish=finish,
            details=details,
            refused=self._refused,
            fallback=self.fallback,
        )

    def unfinished(self, prompt: Prompt, model: str) -> Reply | None:
        """Return what was read of a draft that did not come to its end; None if nothing was.

        Its tokens are the server's count, if that came after the last words, and else estimated.

        Args:
            prompt: that the draft answers.
            model: that was asked.
        """
        if not (self._parts or self._read_calls() or self._usage):
            return None
        asked = "".join([turn.full_text for turn in prompt.messages])
        usage = self._counted or estimate_usage(asked, self._written, model)
        return replace(self._reply(), usage=usage)

    def continued(self, revision: Reply) -> Reply:
        """Return a revision that begins with what the client has of the draft."""
        released = self.released
        if released.text:  # reasoning precedes text
            reasoning = released.reasoning
        else:
            reasoning = "\n\n".join(filter(None, (released.reasoning, revision.reasoning)))
        text = revision.text if self.can_retract else released.text + revision.text
        return replace(revision, text=text, reasoning=reasoning)

    def rest(self, final: Reply) -> Piece:
        """Return what is still to be sent of the final reply.

        A draft that was not revised continues what was sent; other text starts a paragraph.
        """
        released = self.released
        reasoned = len(released.reasoning)
        return Piece(
            final.reasoning[reasoned:] if final.reasoning.startswith(released.reasoning) else "",
            find_continuation(released.text, final.text),
        )

    @property
    def _text_start(self) -> int:
        """Where the text starts in what the window saw."""
        return self._reasoned + 1 if self._reasoned else 0

    @property
    def _written(self) -> str:
        """All that was read, which is what the tokens are of."""
        return "".join([*self._parts, *[call.line for call in self._read_calls()]])

    @property
    def _counted(self) -> Usage | None:
        """The server's counts; if they are of a part of the draft, all that was read counts."""
        usage = self._usage
        if usage is None or self._counts_all:
            return usage
        written = estimate_usage("", self._written, usage.model).output_tokens
        return replace(usage, output_tokens=max(usage.output_tokens, written), estimated=True)

    def _reply(self) -> Reply:
        """Return what has been read, without its token counts."""
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            calls=self._read_calls(),
            milliseconds=(perf_counter() - self._started) * 1e3,
        )

    def _note(self, delta: UpstreamDelta) -> None:
        """Note what a delta adds to the tokens of the draft."""
        if delta.reasoning or delta.text:
            self._parts.append(delta.reasoning + delta.text)
        if calls := delta.calls:
            self._read_calls = lambda: calls
        elif delta.begun:
            self._read_calls = delta.begun
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.usage is not None or delta.text or delta.reasoning or delta.begun:
            self._counts_all = delta.usage is not None

    def _add(self, reasoning: str, text: str) -> bool:
        """Add the next part of the draft; return whether anything was released."""
        seen = text
        # Reasoning that comes after text has no place in an answer.
        if not self._text:
            self._reasoned += len(reasoning)
            self._reasoning.append(reasoning)
            # The rules read reasoning and text as one text, with a line break between them.
            seen = reasoning + ("\n" if text and self._reasoned else "") + text
        if text:
            self._text.append(text)
        if self._held_back or self._refused or (self.can_retract and self._reasoned):
            return False
        released = self._window(seen)
        # The line break between the two is released with them, and is in neither part.
        piece = Piece(
            released[: max(0, self._reasoned - self._sent)],
            released[max(0, self._text_start - self._sent) :],
        )
        self._sent += len(released)
        if any(piece):
            self._release(piece)
        return any(piece)


def ask_to_continue(request: Message, released: str) -> Message:
    """Return the request for a revision that must follow text which the client has already."""
    end = fence("reply", released[-LONGEST_TEXT:])
    return replace(request, content=request.content + CONTINUE.format(released=end))


def find_continuation(released: str, final: str) -> str:
    """Return what is still to be sent of a final text whose beginning may have been sent."""
    if final.startswith(released):
        return final[len(released) :]
    # After an odd number of fences the client is inside a code block, which must end first.
    open_fence = len(FENCE.findall(released)) % 2
    return ("\n```\n\n" if open_fence else "\n\n") + final
