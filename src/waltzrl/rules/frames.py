"""Frames of questions: who acts, and on what.

A finding in a request is a reason to flag it if the asker is the actor, and a person or something
protected is the object. "How do police dogs find drugs?" has another actor, "How do I kill a zombie
process?" harms nobody. The frames of `packs/frames.toml` name such clauses.
"""

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

import msgspec

from waltzrl.rules.pack import Rule, shared_words, shipped
from waltzrl.rules.pattern import RulePattern
from waltzrl.rules.scan import compiled, with_plain_quotes

CRITICAL = 0.9
"""The severity of rules from which only some frames count."""
LONGEST_CLAUSE = 300
"""Characters on either side of a finding that belong to its clause."""
PAST = 10
"""Characters by which a finding may end after a frame that it overlaps: the next word."""
_CLAUSE_END = re.compile(
    r"[.!?;](?=\s|$)|\n|,? (?:and|but|or|then)(?: also| then)?"
    r"(?= (?:how|what|where|tell|give|show|explain|describe|write|teach|list|help|i (?:want|need))\b)",
    re.IGNORECASE,
)

Where = Literal["before", "over", "clause"]
"""Of a frame: it ends before the finding does, overlaps it, or stands anywhere in its clause."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Clauses in which the asker is not the actor, or nobody is the object."""

    id: str
    where: Where
    critical: bool
    """Whether it also holds for rules of severity `CRITICAL` and above."""
    not_for: frozenset[str]
    """Categories and ids of rules that it says nothing about."""
    patterns: tuple[str, ...]
    """Regular expressions."""
    unless: tuple[str, ...]
    """What makes the asker the actor after all."""
    example: str
    twins: tuple[str, ...]
    """Clauses that are not in this frame."""

    def holds(self, clause: bytes, start: int, end: int) -> bool:
        """Whether the words of the clause from `start` to `end` are in this frame."""
        if self.where == "over":
            found = any(
                match.start() < end and start < match.end() and end <= match.end() + PAST
                for regex in self.patterns
                for match in _compiled(regex).finditer(clause)
            )
        else:
            found = _finds(self.patterns, clause[:end] if self.where == "before" else clause)
        return found and not _finds(self.unless, clause)

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


class _Unless(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    patterns: list[str]


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    version: int
    never: list[str]
    """Ids of rules that no frame says anything about."""
    words: dict[str, list[str]]
    unless: _Unless
    frame: list[_Row]


@cache
def shipped_frames() -> tuple[Frame, ...]:
    """Return the frames that come with waltzrl."""
    file = msgspec.convert(tomllib.loads(shipped("frames").decode("utf-8")), _File)
    words = shared_words() | {name: "|".join(listed) for name, listed in file.words.items()}

    def regexes(sources: Sequence[str]) -> tuple[str, ...]:
        return tuple(RulePattern(source=source, words=words).regex for source in sources)

    always = regexes(file.unless.patterns)
    return tuple(
        Frame(
            id=row.id,
            where=row.where,
            critical=row.critical,
            not_for=frozenset((*row.not_for, *file.never)),
            patterns=regexes(row.patterns),
            unless=(*regexes(row.unless), *always),
            example=row.example,
            twins=tuple(row.twins),
        )
        for row in file.frame
    )


def frame_of(rule: Rule, text: str, start: int, end: int) -> str:
    """Return the id of a frame around what `rule` finds in a request; "" without one."""
    first, last = clause_around(text, start, end)
    clause = with_plain_quotes(text[first:last]).encode("latin-1", "replace")
    for frame in shipped_frames():
        if frame.covers(rule) and frame.holds(clause, start - first, end - first):
            return frame.id
    return ""


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


def _finds(regexes: tuple[str, ...], clause: bytes) -> bool:
    return any(_compiled(regex).search(clause) for regex in regexes)


_compiled = lru_cache(maxsize=1024)(compiled)
