"""Reads a text by the rules of one side: scan, see through disguises, weigh the context."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from waltzrl.rules.context import REACH, weigh
from waltzrl.rules.disguise import DISGUISE, ROT13_REACH, readings
from waltzrl.rules.finding import RuleFinding
from waltzrl.rules.fold import Folded, foldable
from waltzrl.rules.rule import Rule
from waltzrl.rules.scan import PatternScanner


class Reader:
    """The rules of one side."""

    def __init__(self, rules: Sequence[Rule], *, local: bool = False) -> None:
        """Compile `rules`.

        Args:
            rules: all of one side.
            local: leave findings out that are longer than any pattern, because hidden characters
                or an encoding stretch them; then all that decides a finding lies within `horizon`.
        """
        self._rules = [rule for rule in rules for _pattern in rule.patterns]
        patterns = [pattern for rule in rules for pattern in rule.patterns]
        self._scanner = PatternScanner(patterns, sign=DISGUISE)
        self._longest = max((p.longest for p in patterns), default=0) if local else None
        self.horizon = (self._longest or 0) + max(REACH, ROT13_REACH)

    def read(self, text: str) -> tuple[RuleFinding, ...]:
        """Find what the rules say, in order of place."""
        hits = set(self._hits(text))
        if not hits:  # as in most texts
            return ()
        found = [self._finding(text, number, start, end) for number, start, end in sorted(hits)]
        joined = _joined(sorted(found, key=lambda f: (f.rule, f.start)))
        return tuple(sorted(joined, key=lambda f: (f.start, f.rule)))

    def speaks(self, text: str) -> bool:
        """Whether any rule finds anything."""
        return next(self._hits(text), None) is not None

    def _hits(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield pattern number, start and end in the text as given, perhaps more than once."""
        if not foldable(text):
            yield from self._seen(text.encode("latin-1", "replace"))
            return
        folded = Folded(text)
        for number, start, end in self._seen(folded.text.encode("latin-1", "replace")):
            first, last = folded.origin(start), folded.origin(end - 1)
            if self._longest is None or last - first < self._longest:
                yield number, first, last + 1

    def _seen(self, raw: bytes) -> Iterator[tuple[int, int, int]]:
        keys = self._scanner.keys(raw)
        if not keys:
            return
        yield from self._scanner.scan(raw, keys)
        if self._scanner.sign not in keys:
            return
        for reading in readings(raw):
            for number, start, end in self._scanner.scan(reading.text):
                first, last = reading.origin(start), reading.origin(end - 1)
                short = self._longest is None or last - first < self._longest
                if short and reading.trusts(first, last + 1):
                    yield number, first, last + 1

    def _finding(self, text: str, number: int, start: int, end: int) -> RuleFinding:
        rule = self._rules[number]
        around = (text[max(0, start - REACH) : start], text[start:end], text[end : end + REACH])
        before, match, after = (part.encode("latin-1", "replace") for part in around)
        return RuleFinding(
            rule=rule.id,
            category=rule.category,
            severity=weigh(rule.severity, before, match, after),
            start=start,
            end=end,
        )


def _joined(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Join findings of one rule that overlap; the highest severity stays."""
    joined: list[RuleFinding] = []
    for finding in findings:
        last = joined[-1] if joined else None
        if last and last.rule == finding.rule and finding.start < last.end:
            joined[-1] = replace(
                last,
                end=max(last.end, finding.end),
                severity=max(last.severity, finding.severity),
            )
        else:
            joined.append(finding)
    return joined
