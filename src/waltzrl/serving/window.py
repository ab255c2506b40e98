"""How much of a growing draft may leave before it has been reviewed as a whole.

    the next text  -> add  -> what may be sent now         while the draft is written
    the final text -> rest -> what is still to be sent    after the verdict

`BufferedWindow` releases nothing, `UnfilteredWindow` everything, and `SentenceWindow` what the
rules have passed and what no later word can turn into a part of a finding.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from waltzrl.records import Prompt
from waltzrl.rules import Rulebook

FEWEST_CHARACTERS = 32
"""Leave at once; below that, looking costs more than the client gains."""
LONGEST_SENTENCE = 240
"""Characters after which a sentence leaves word by word."""
LONGEST_HELD = 4_000
"""Characters that wait, as those of one endless word do, before the window shuts for good."""

SENTENCE_END = re.compile(
    r"""\n|(?<=[.!?:;…])\s|(?<=[.!?…]["')\]*_”»])\s|(?<=[\u3002\uff01\uff1f])"""
)
WORD_END = re.compile(r"\s")
FENCE = re.compile(r"^ {0,3}```", re.MULTILINE)


class Window(Protocol):
    """Decides how much of a growing draft may leave before it has been reviewed as a whole."""

    @property
    def released(self) -> str:
        """What has left: a beginning of the draft."""
        ...

    def add(self, text: str) -> str:
        """Add the next text of the draft, and return what may be sent now."""
        ...

    def rest(self, final: str) -> str:
        """Return what is still to be sent of the text that the verdict let through."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftStream:
    """Where the text of a draft goes while it is written."""

    window: Window
    release: Callable[[str], None]
    """Called with the text that may be sent now."""
    can_retract: bool = False
    """What was sent can be taken back, so that a revision need not continue from it."""


class BufferedWindow:
    """Nothing leaves before the verdict."""

    released = ""

    def add(self, text: str) -> str:
        return ""

    def rest(self, final: str) -> str:
        return final


class UnfilteredWindow:
    """All leaves at once; the verdict is only written down."""

    def __init__(self) -> None:
        self._left: list[str] = []

    @property
    def released(self) -> str:
        return "".join(self._left)

    def add(self, text: str) -> str:
        self._left.append(text)
        return text

    def rest(self, final: str) -> str:
        return ""


class SentenceWindow:
    """What the rules have passed leaves, sentence by sentence.

    A sentence leaves when `Rulebook.horizon` characters follow it, for then no later word can
    make it a part of a finding, nor change the severity of one. The rules read every character
    a bounded number of times, however the draft is cut into pieces.
    """

    def __init__(
        self, rulebook: Rulebook, prompt: Prompt, threshold: float, *, whole_sentences: bool = True
    ) -> None:
        """Open the window, or keep it shut when the rules find something in the prompt.

        Args:
            rulebook: stage 1.
            prompt: what the draft answers; the turns of users and tools count.
            threshold: 0 to 1, how safe a reply must be. The draft is stopped when its findings,
                taken as independent, make it less safe than that.
            whole_sentences: False lets every word go as soon as it may.
        """
        self.stopped = False
        """What was found makes the draft less safe than the threshold; no more of it leaves."""
        self._rulebook = rulebook
        self._threshold = threshold
        self._risk = 0.0
        asked = " ".join(turn.content for turn in prompt.messages if turn.role in {"user", "tool"})
        self._shut = bool(rulebook.request(asked))
        self._end = SENTENCE_END if whole_sentences else WORD_END
        self._left: list[str] = []
        self._text = ""
        """The end of what has left, as far as a rule looks back, and what has not left."""
        self._gone = 0
        """Where in `_text` begins what has not left."""
        self._found = 0
        """The last end of a sentence out of reach of the words to come; never before `_gone`."""
        self._looked = 0
        """Where to look for the next."""

    @property
    def released(self) -> str:
        return "".join(self._left)

    def add(self, text: str) -> str:
        if self._shut or self.stopped:
            return ""
        self._text += text
        self._look()
        if self._found - self._gone >= FEWEST_CHARACTERS and self._passes():
            return self._release()
        self._shut = self._shut or len(self._text) - self._gone > LONGEST_HELD
        return ""

    def rest(self, final: str) -> str:
        released = self.released
        if final.startswith(released):
            return final[len(released) :]
        return _break_after(released) + final

    def _look(self) -> None:
        """Find the last end that is out of reach of the words to come."""
        for end in self._end.finditer(self._text, self._looked, self._settled):
            self._found = end.end()
        self._looked = max(self._looked, self._settled)
        if self._settled - self._found > LONGEST_SENTENCE:
            self._found = max(self._found, 1 + self._text.rfind(" ", self._found, self._settled))

    @property
    def _settled(self) -> int:
        """Where the words to come begin to matter: what a rule says of earlier ones stands."""
        return max(0, len(self._text) - self._rulebook.horizon)

    def _passes(self) -> bool:
        """Ask the rules about everything up to the last end that was found."""
        if not self._left and self._rulebook.refuses(self._text):
            self._shut = True
        findings = [
            finding
            for finding in self._rulebook.reply(self._text)
            if finding.start < self._found and finding.end > self._gone
        ]
        if self._shut or any(finding.end > self._found for finding in findings):
            return False  # a finding leaves whole or not at all
        for finding in findings:
            self._risk += (1 - self._risk) * finding.severity
        self.stopped = 1 - self._risk < self._threshold
        return not self.stopped

    def _release(self) -> str:
        """Let everything up to the last end go, and forget what no rule will look back at."""
        leaving = self._text[self._gone : self._found]
        self._left.append(leaving)
        forgotten = max(0, self._found - self._rulebook.horizon)
        self._text = self._text[forgotten:]
        self._looked -= forgotten
        self._gone = self._found = self._found - forgotten
        return leaving


def _break_after(released: str) -> str:
    """Return the paragraph break behind a beginning that is not gone on with."""
    open_fence = len(FENCE.findall(released)) % 2
    return "\n```\n\n" if open_fence else "\n\n"
