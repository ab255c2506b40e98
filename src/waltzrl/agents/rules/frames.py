"""Frames of questions: who acts, and on what.

A finding in a request is a reason to flag it if the asker is the actor, and a person or something
protected is the object. "How do police dogs find drugs?" has another actor, "How do I kill a zombie
process?" harms nobody. The frames of `packs/frames.toml` name such clauses.
"""

import re
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import msgspec

from waltzrl.agents.rules.pack import Rule, read_shipped, shared_words
from waltzrl.agents.rules.pattern import RulePattern
from waltzrl.agents.rules.scan import PatternScanner, with_plain_quotes

CRITICAL = 0.9
"""The severity of rules from which only some frames count."""
LONGEST_CLAUSE = 300
"""The characters on either side of a finding that belong to its clause."""
PAST = 10
"""The characters by which a finding may end after a frame that it overlaps: the next word."""
_CLAUSE_END = re.compile(
    r"[.!?;](?=\s|$)|\n|,? (?:and|but|or|then)(?: also| then)?"
    r"(?= (?:how|what|where|tell|give|show|explain|describe|write|teach|list|help"
    r"|i (?:want|need))\b)",
    re.IGNORECASE,
)

Where = Literal["before", "over", "clause"]
"""The place of a frame: it ends before the finding does, overlaps it, or stands anywhere in its
clause.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Clauses in which the asker is not the actor, or nobody is the object."""

    id: str
    where: Where
    critical: bool
    """True if it also holds for rules of severity `CRITICAL` and above."""
    not_for: frozenset[str]
    """Categories and ids of rules that it says nothing about."""
    patterns: tuple[RulePattern, ...]
    unless: tuple[RulePattern, ...]
    """The words that make the asker the actor after all; anywhere in the clause."""
    example: str
    twins: tuple[str, ...]
    """Clauses that are not in this frame."""

    def covers(self, rule: Rule) -> bool:
        """Whether it says anything about what `rule` finds."""
        said = not self.not_for.intersection((rule.category, rule.id))
        return said and (self.critical or rule.severity < CRITICAL)


class _Row(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: str
    where: Where
    patterns: list[str]
    example: str
    twins: list[str]
    unless: list[str] = []
    not_for: list[str] = []
    critical: bool = False
    stealth: bool = False
    """True if hiding from others belongs to what it names, as in a game."""


class _Unless(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    patterns: list[str]
    """The patterns that are not in frames with `stealth`."""
    orders: list[str]
    """The orders to a model; in all frames."""


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    version: int
    never: list[str]
    """Ids of rules that no frame says anything about."""
    words: dict[str, list[str]]
    unless: _Unless
    frame: list[_Row]


class FrameScanner:
    """Frames, compiled together."""

    def __init__(self, frames: Sequence[Frame]) -> None:
        """Compile `frames`."""
        self._frames = frames
        patterns = list(
            dict.fromkeys(p for frame in frames for p in (*frame.patterns, *frame.unless))
        )
        numbers = {pattern: number for number, pattern in enumerate(patterns)}
        self._patterns = [frozenset(numbers[p] for p in frame.patterns) for frame in frames]
        self._unless = [frozenset(numbers[p] for p in frame.unless) for frame in frames]
        self._scanner = PatternScanner(patterns)
        # Findings share a clause.
        self._read = lru_cache(maxsize=64)(lambda clause: tuple(self._scanner.scan(clause)))

    def frame_of(self, rule: Rule, text: str, start: int, end: int) -> str:
        """Return the id of a frame around what `rule` finds in a request; "" without one."""
        first, last = clause_around(text, start, end)
        # Each character is one byte, so that positions are those of the text.
        clause = with_plain_quotes(text[first:last]).encode("latin-1", "replace")
        held = self._held(clause, start - first, end - first)
        return next((frame.id for frame in held if frame.covers(rule)), "")

    def holds(self, clause: str) -> bool:
        """Whether a clause as a whole, without its last mark, is in any frame."""
        return any(self._held(clause.encode("latin-1", "replace"), 0, len(clause) - 1))

    def _held(self, clause: bytes, start: int, end: int) -> Iterator[Frame]:
        """Yield the frames of the words of `clause` from `start` to `end`."""
        in_clause = self._read(clause)
        found = {
            "clause": {number for number, _, _ in in_clause},
            "over": {
                number
                for number, first, last in in_clause
                if first < end and start < last and end <= last + PAST
            },
            "before": {number for number, _, _ in self._read(clause[:end])},
        }
        for frame, patterns, unless in zip(self._frames, self._patterns, self._unless, strict=True):
            if patterns & found[frame.where] and not unless & found["clause"]:
                yield frame


@cache
def load_shipped_frames() -> tuple[Frame, ...]:
    """Return the frames that come with waltzrl."""
    file = msgspec.convert(tomllib.loads(read_shipped("frames").decode("utf-8")), _File)
    words = shared_words() | {name: "|".join(listed) for name, listed in file.words.items()}

    def patterns(sources: Sequence[str]) -> tuple[RulePattern, ...]:
        return tuple(RulePattern(source=source, words=words) for source in sources)

    hiding, orders = patterns(file.unless.patterns), patterns(file.unless.orders)
    return tuple(
        Frame(
            id=row.id,
            where=row.where,
            critical=row.critical,
            not_for=frozenset((*row.not_for, *file.never)),
            patterns=patterns(row.patterns),
            unless=(*patterns(row.unless), *orders, *(() if row.stealth else hiding)),
            example=row.example,
            twins=tuple(row.twins),
        )
        for row in file.frame
    )


@cache
def load_shipped_reader() -> FrameScanner:
    """Return the frames that come with waltzrl, compiled."""
    return FrameScanner(load_shipped_frames())


def clause_around(text: str, start: int, end: int) -> tuple[int, int]:
    """Return start and end of the clause with the characters from `start` to `end`."""
    first, last = max(0, start - LONGEST_CLAUSE), end + LONGEST_CLAUSE
    for mark in _CLAUSE_END.finditer(text, first, last):
        if mark.end() <= start:
            first = mark.end()
        elif mark.start() >= end:
            last = mark.start()
            break
    first += len(text[first:start]) - len(text[first:start].lstrip())
    return first, min(last, len(text))
