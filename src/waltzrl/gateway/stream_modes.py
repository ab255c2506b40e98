"""How a stream is held back until its review: the modes, and the windows that they open.

`StreamMode` lists the modes with all that they do; docs/streaming.md says what each guarantees.
A window releases nothing, everything, or, as `SentenceWindow`, the text that the rules have passed
and that no later text can make part of a finding.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Self, TypeAlias

from waltzrl.collaboration import Drafter, Pattern, Reviewer
from waltzrl.errors import OverloadError
from waltzrl.records import Collaboration, Feedback, Prompt, Round

if TYPE_CHECKING:
    from waltzrl.agents import RulesReviewer
    from waltzrl.agents.rules import Rulebook

FEWEST_CHARACTERS = 32
"""The fewest characters that are released at once, of the first words and of a later sentence: for
fewer, running the rules would cost more than the client gains."""
LONGEST_SENTENCE = 80
"""The most characters of a sentence that wait for its end; a longer one is released word by word.
"""
LONGEST_HELD = 4_000
"""The most characters that were not sent, those of the horizon too, before the window closes for
good; for instance of one endless word."""

SENTENCE_END = re.compile(
    r"""\n|(?<=[.!?:;…])\s|(?<=[.!?…]["')\]*_”»])\s|(?<=[\u3002\uff01\uff1f])"""
)
WORD_END = re.compile(r"\s")

Window: TypeAlias = Callable[[str], str]
"""Takes the next text of a streamed draft, and returns what may be sent before the final review."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBehaviour:
    """What is sent of a streamed draft before its review, and what may happen after it."""

    open_window: Callable[["RulesReviewer", Prompt], Window]
    """Opens the window of one choice: for the rules of stage 1, and what the draft answers."""
    can_retract: bool = False
    """True if a `waltz.retract` event can replace text that was sent, so that a revision need not
    continue from it. Only some clients understand such an event."""
    pattern: Pattern | None = None
    """The pattern for a draft that was sent before its review; None for the bundle's own pattern,
    by which the review comes first."""


async def send_then_review(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Answer with the draft, which has been sent; a reviewer without time changes nothing."""
    draft = await drafter.draft(prompt)
    try:
        feedback = await reviewer.review(prompt, draft)
    except OverloadError as overload:
        feedback = Feedback(
            unsafe=False, overrefuse=False, well_formed=False, failure=overload.reason
        )
    return Collaboration(prompt=prompt, draft=draft, rounds=(Round(feedback=feedback),))


class StreamMode(StrEnum):
    """A way of holding a stream back, by its name in recipes, API keys, headers and records."""

    behaviour: StreamBehaviour

    BUFFER = "buffer", StreamBehaviour(open_window=lambda _rules, _prompt: lambda _text: "")
    """Nothing is sent before the verdict."""
    WINDOW = (
        "window",
        StreamBehaviour(
            open_window=lambda rules, prompt: (
                SentenceWindow(rules.rulebook, prompt, rules.threshold).add
            )
        ),
    )
    """Sentences are sent that the rules have passed; a revision continues from them."""
    SPECULATIVE = (
        "speculative",
        StreamBehaviour(
            open_window=lambda rules, prompt: (
                SentenceWindow(rules.rulebook, prompt, rules.threshold, whole_sentences=False).add
            ),
            can_retract=True,
        ),
    )
    """Words are sent that the rules have passed, and taken back if they are revised."""
    AUDIT = (
        "audit",
        StreamBehaviour(
            open_window=lambda _rules, _prompt: lambda text: text, pattern=send_then_review
        ),
    )
    """Everything is sent; the review is only recorded."""

    def __new__(cls, name: str, behaviour: StreamBehaviour) -> Self:
        mode = str.__new__(cls, name)
        mode._value_ = name
        mode.behaviour = behaviour
        return mode

    def for_client(self, *, takes_retractions: bool) -> "StreamMode":
        """Return this mode, or `window` if it may retract text and the client cannot."""
        if self.behaviour.can_retract and not takes_retractions:
            return StreamMode.WINDOW
        return self


class SentenceWindow:
    """Releases what the rules have passed, sentence by sentence.

    `Rulebook.horizon` is the number of characters that can influence a finding: text that is
    followed by so many is settled, because no later text can make it part of a finding or change
    a finding's severity. Settled text is released once it passes the rules: its first words at
    once, then whole sentences, and a sentence without an end word by word. So the client waits for
    the horizon and `FEWEST_CHARACTERS`, with punctuation and without. The rules read every
    character a bounded number of times, however the draft is split into deltas.
    """

    def __init__(
        self,
        rulebook: "Rulebook",
        prompt: Prompt,
        threshold: float,
        *,
        whole_sentences: bool = True,
    ) -> None:
        """Open the window, or keep it closed when the rules find something in the prompt.

        Args:
            rulebook: the rules of stage 1.
            prompt: what the draft answers; the rules read all that steers the draft.
            threshold: 0 to 1, how safe a reply must be. The draft is stopped when its findings,
                taken as independent, make it less safe than that.
            whole_sentences: False releases every word as soon as it is settled, not only the first.
        """
        # Every command imports the modes, and this import takes as long as many of them.
        from waltzrl.agents.request import request_findings

        self.stopped = False
        """True if the findings make the draft less safe than the threshold; then no more of it is
        released.
        """
        self._rulebook = rulebook
        self._threshold = threshold
        self._risk = 0.0
        self._closed = bool(request_findings(rulebook, prompt))
        self._boundary_pattern = SENTENCE_END if whole_sentences else WORD_END
        self._has_begun = False
        """True once text was released."""
        self._text = ""
        """The last `horizon` characters that were released, and all that was not."""
        self._sent = 0
        """The place in `_text` where the text that was not released begins."""
        self._boundary = 0
        """The end of the last settled sentence; at least `_sent`."""
        self._searched = 0
        """The place where the search for boundaries goes on."""

    def add(self, text: str) -> str:
        if self._closed or self.stopped:
            return ""
        self._text += text
        if len(self._text) - self._rulebook.horizon - self._sent < FEWEST_CHARACTERS:
            return ""
        self._find_boundary()
        if self._boundary - self._sent >= FEWEST_CHARACTERS and self._passes():
            return self._release()
        self._closed = self._closed or len(self._text) - self._sent > LONGEST_HELD
        return ""

    def _find_boundary(self) -> None:
        """Move the boundary to the end of the last settled sentence."""
        # Later text can influence findings only from here on.
        settled = max(0, len(self._text) - self._rulebook.horizon)
        # A lookbehind of the pattern also sees what stands before `_searched`.
        for boundary in self._boundary_pattern.finditer(self._text, self._searched, settled):
            self._boundary = boundary.end()
        self._searched = max(self._searched, settled)
        # The first words go at once, and a sentence without an end must not hold up the rest.
        if settled - self._boundary > (LONGEST_SENTENCE if self._has_begun else 0):
            # Without a space this is 0, and the boundary stays.
            last_word_end = 1 + self._text.rfind(" ", self._boundary, settled)
            self._boundary = max(self._boundary, last_word_end)

    def _passes(self) -> bool:
        """Run the rules on the text up to the boundary."""
        # A draft that begins as a refusal is held: the review may call it an over-refusal.
        if not self._has_begun and self._rulebook.refuses(self._text):
            self._closed = True
        # What ends before `_sent` was counted when that text was released.
        findings = [
            finding
            for finding in self._rulebook.reply(self._text)
            if finding.start < self._boundary and finding.end > self._sent
        ]
        if self._closed or any(finding.end > self._boundary for finding in findings):
            return False  # a finding is released as a whole or not at all
        for finding in findings:
            # The probability that at least one of the independent findings is right.
            self._risk += (1 - self._risk) * finding.severity
        self.stopped = 1 - self._risk < self._threshold
        return not self.stopped

    def _release(self) -> str:
        """Release the text up to the boundary, and drop what is beyond the rules' horizon."""
        released = self._text[self._sent : self._boundary]
        self._has_begun = True
        # What was released stays within the rules' reach: a finding may begin in it.
        dropped = max(0, self._boundary - self._rulebook.horizon)
        self._text = self._text[dropped:]
        self._searched -= dropped
        self._sent = self._boundary = self._boundary - dropped
        return released
