"""The rules of stage 1 at work: scan, see through disguises, weigh the context."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property, lru_cache
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import get_args

from waltzrl.agents.rules.calls import CALL_SIDES, read_call
from waltzrl.agents.rules.disguise import CUE_REACH, DISGUISE, TextReading, find_readings
from waltzrl.agents.rules.frames import clause_around, load_shipped_reader
from waltzrl.agents.rules.joined import PIECES, JoinedReading, find_joined
from waltzrl.agents.rules.markup import MARK_REACH, MARKUP, Unmarked
from waltzrl.agents.rules.pack import DEFAULT_PACKS, Rule, RulePack, Side, digest_of, load_pack
from waltzrl.agents.rules.pattern import RulePattern
from waltzrl.agents.rules.request_model import READS_AS_HARMFUL, harm_probability
from waltzrl.agents.rules.scan import (
    Folded,
    PatternScanner,
    compile_pattern,
    compile_set,
    is_foldable,
    show_spelt,
    with_plain_quotes,
    without_halves,
)
from waltzrl.errors import InputError

OPENING = 320
"""Characters at the start of a reply that are searched for a refusal."""
LONGEST_WITHOUT_SUPPORT = 320
"""Characters of a supportive reply that may pass without a word of support."""
REACH = 80
"""Characters of context on each side of a match."""
FLOOR, CEILING = 0.35, 1.25
"""Bounds of what the context multiplies a severity by; 0.9 always stays above 0.3."""

UNPROVED = 0.3
"""Factor for a finding whose asker is not the actor, or that harms nobody, and for one of a weak or
ambiguous pattern that stands alone. Even a severity of 1.0 flags nothing then."""
NEARBY = 300
"""Characters between two findings that support each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleFinding:
    """A match of a rule, and its position."""

    rule: str
    """The id of the rule, such as `violence/explosives`."""
    category: str
    """One of `waltzrl.agents.rules.CATEGORIES`."""
    severity: float
    """0 to 1, adjusted for the context (negation, education, defence ...)."""
    earlier: bool = False
    """True if the match ends before the user's last turn, in a turn of the user."""
    start: int
    """First character of the match in the original text; where disguises were undone, the nearest
    one."""
    end: int
    unread: bool = False
    """True if a classifier of exchanges may not read the words: behind a disguise, such as an
    encoding or look-alike letters, in a tool call, outside of the user's turns, or in the middle of
    a long request."""


def load_rulebook(
    packs: Sequence[str | Path] = DEFAULT_PACKS, off: Collection[str] = ()
) -> "Rulebook":
    """Read packs of rules.

    Args:
        packs: names of packs that come with waltzrl, or paths of TOML files.
        off: ids of rules that are left out, such as `violence/killing`.

    Raises:
        InputError: a file cannot be read, two rules have the same id, or none has one of `off`.
    """
    return _compile_rulebook(tuple(load_pack(pack) for pack in packs), frozenset(off))


@lru_cache(maxsize=8)  # a rulebook is immutable and large: equal packs share one
def _compile_rulebook(packs: tuple[RulePack, ...], off: frozenset[str]) -> "Rulebook":
    rules = tuple(chain.from_iterable(pack.rules for pack in packs))
    ids = [rule.id for rule in rules]
    if duplicates := {name for name in ids if ids.count(name) > 1}:
        raise InputError(
            f"two rules are called {min(duplicates)!r}; rename one, or load each pack once"
        )
    if unknown := off - set(ids):
        near = get_close_matches(min(unknown), ids, n=1)
        raise InputError(
            f"rules_off: no rule is called {min(unknown)!r}; "
            + (f"did you mean {near[0]!r}?" if near else "`waltzrl rules list` names them")
        )
    digest = digest_of(packs)
    if off:
        digest = sha256(f"{digest} without {sorted(off)}".encode()).hexdigest()
    return Rulebook(tuple(rule for rule in rules if rule.id not in off), digest)


class Rulebook:
    """All rules, compiled."""

    def __init__(self, rules: tuple[Rule, ...], digest: str) -> None:
        self.rules = rules
        self.digest = digest
        """Hash of the packs; identifies the rulebook in logs."""
        by_side = {side: [r for r in rules if r.side == side] for side in get_args(Side)}
        self._request = RuleReader(by_side["request"], framed=True)
        self._reply = RuleReader(by_side["reply"], local=True)
        self._refusal = RuleReader(by_side["refusal"])
        self._support = RuleReader(by_side["support"])
        self._method = RuleReader(by_side["method"])
        self._calls = {
            side: RuleReader(by_side[side], weighed=False) for side in CALL_SIDES if by_side[side]
        }
        self.horizon = self._reply.horizon
        """Characters around a finding in a reply that can influence it.

        A finding that ends more than `horizon` characters before the end of a text is the same
        whatever follows, and one that starts more than `horizon` characters after the beginning
        is the same whatever came before.
        """

    def request(self, text: str) -> tuple[RuleFinding, ...]:
        """Return what the rules find in a user's request, in order of position."""
        return self._request.read(text)

    def reply(self, text: str) -> tuple[RuleFinding, ...]:
        """Return what the rules find in a reply, in order of position."""
        return self._reply.read(text)

    def call(self, name: str, arguments: str) -> tuple[RuleFinding, ...]:
        """Return what the rules find in a tool call; positions are those in `read_call`'s texts.

        Args:
            name: of the tool.
            arguments: JSON, which need not be well formed.
        """
        if not self._calls:
            return ()
        texts = read_call(name, arguments)
        return tuple(
            finding
            for side, reader in self._calls.items()
            if side in texts
            for finding in reader.read(texts[side])
        )

    def refuses(self, text: str) -> bool:
        """Whether the opening of a reply declines, wholly or in part."""
        return self._refusal.matches(text[:OPENING])

    def supports(self, text: str) -> bool:
        """Whether a reply to somebody in a crisis supports them throughout.

        Words of support at the end of a method, or before it, are not enough.
        """
        findings = self._support.read(text)
        starts = [*(finding.start for finding in findings), len(text)]
        ends = [0, *(finding.end for finding in findings)]
        # The text before the first words of support, between them, and after the last.
        gaps = (start - end for start, end in zip(starts, ends, strict=True))
        return bool(findings) and max(gaps) <= LONGEST_WITHOUT_SUPPORT

    def tells_how(self, text: str) -> bool:
        """Whether a reply to somebody in a crisis may say how to harm oneself."""
        return self._method.matches(text)


class RuleReader:
    """The compiled rules of one side."""

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        local: bool = False,
        framed: bool = False,
        weighed: bool = True,
    ) -> None:
        """Compile `rules`.

        Args:
            rules: all of one side.
            framed: weaken what stands in a clause whose asker is not the actor, or that harms
                nobody; see `waltzrl.agents.rules.frames`.
            local: ignore matches that hidden characters or an encoding stretch beyond the longest
                pattern, so that only characters within `horizon` can influence a finding.
            weighed: let the words around a match lower or raise its severity.
        """
        self._weighed = weighed
        self._frames = load_shipped_reader() if framed else None
        self._rules = [rule for rule in rules for _pattern in rule.patterns]
        self._exceptions: dict[str, TextScanner] = {}
        """The exceptions by rule; compiled when the rule first matches: few texts need any."""
        patterns = [pattern for rule in rules for pattern in rule.patterns]
        exceptions = (pattern for rule in rules for pattern in rule.exceptions)
        self._longest = (
            max((pattern.longest for pattern in chain(patterns, exceptions)), default=0)
            if local
            else None
        )
        self._patterns = patterns
        self._scanner = TextScanner(patterns, self._longest)
        self.horizon = (self._longest or 0) + max(REACH, CUE_REACH, MARK_REACH)

    def read(self, text: str) -> tuple[RuleFinding, ...]:
        """Return the findings in order of position."""
        readable = _Readable(text, joins=self._frames is not None)
        findings = self._read_as_given(text, readable)
        others = self._read_joined(readable) if readable.may_join else []
        if readable.folded is not None and (spelt := show_spelt(text)) != text:
            shown = self._read_as_given(spelt, _Readable(spelt))
            others += (replace(finding, unread=True) for finding in shown)
        if others:
            findings = _merge_findings(sorted(findings + others, key=lambda f: (f.rule, f.start)))
            findings.sort(key=lambda f: (f.start, f.rule))
        return tuple(findings)

    def _read_joined(self, readable: "_Readable") -> list[RuleFinding]:
        """Return what is found where pieces are joined, as in a request of its own."""
        findings: dict[tuple[str, int, int], RuleFinding] = {}
        for reading in readable.read_joined():
            for found in self._read_as_given(reading.text, _Readable(reading.text)):
                if reading.joins(found.start, found.end):
                    places = reading.origin(found.start), reading.origin(found.end - 1)
                    start, end = map(readable.place_of, places)
                    finding = replace(found, start=start, end=max(start, end) + 1, unread=True)
                    findings.setdefault((finding.rule, start, end), finding)
        return list(findings.values())

    def _read_as_given(self, text: str, readable: "_Readable") -> list[RuleFinding]:
        hits = self._counted(readable)
        if not hits:  # as in most texts
            return []
        # What the text itself shows too is not hidden from a classifier.
        plain = set(self._scanner.plain_hits(readable)) if readable.disguises else hits
        ordered = sorted(hits)
        found = [self._finding(text, *hit, hit not in plain) for hit in ordered]
        findings = [
            finding
            if self._is_sure(number, text, finding) or _is_supported(finding, found)
            else _weaken_finding(finding)
            for (number, _start, _end), finding in zip(ordered, found, strict=True)
        ]
        merged = _merge_findings(sorted(findings, key=lambda f: (f.rule, f.start)))
        return sorted(merged, key=lambda f: (f.start, f.rule))

    def _is_sure(self, number: int, text: str, finding: RuleFinding) -> bool:
        """Whether a finding of a pattern is a reason to flag a text on its own."""
        rule, pattern = self._rules[number], self._patterns[number]
        if pattern in rule.ambiguous:
            return finding.unread or _reads_as_harmful(text, finding)
        return pattern not in rule.weak

    def matches(self, text: str) -> bool:
        """Whether any rule finds anything."""
        return bool(self._counted(_Readable(text)))

    def _counted(self, readable: "_Readable") -> set[tuple[int, int, int]]:
        """Return the hits of patterns, without those that end within an exception of their rule."""
        hits = set(self._scanner.hits(readable))
        if hits:
            matching = {self._rules[number].id: self._rules[number] for number, _, _ in hits}
            for rule in matching.values():
                if rule.exceptions:
                    hits -= self._excused(rule, hits, readable)
        return hits

    def _excused(
        self, rule: Rule, hits: Iterable[tuple[int, int, int]], text: "_Readable"
    ) -> set[tuple[int, int, int]]:
        if rule.id not in self._exceptions:
            self._exceptions[rule.id] = TextScanner(rule.exceptions, self._longest)
        exceptions = {(first, last) for _, first, last in self._exceptions[rule.id].hits(text)}
        return {
            (number, start, end)
            for number, start, end in hits
            if self._rules[number] is rule
            and any(first < end <= last for first, last in exceptions)
        }

    def _finding(
        self, text: str, number: int, start: int, end: int, is_disguised: bool
    ) -> RuleFinding:
        rule = self._rules[number]
        around = (text[max(0, start - REACH) : start], text[start:end], text[end : end + REACH])
        before, match, after = (part.encode("latin-1", "replace") for part in around)
        severity = rule.severity
        if self._weighed:
            severity = weigh_severity(severity, before, match, after)
        if not self._is_meant(rule, text, start, end):
            severity = round(severity * UNPROVED, 3)
        return RuleFinding(
            rule=rule.id,
            category=rule.category,
            severity=severity,
            start=start,
            end=end,
            unread=is_disguised or not with_plain_quotes(text[start:end]).isascii(),
        )

    def _is_meant(self, rule: Rule, text: str, start: int, end: int) -> bool:
        """Whether the asker is the actor, and somebody or something is the object."""
        # Without frames every match is meant.
        if self._frames is None or self._frames.frame_of(rule, text, start, end):
            return self._frames is None
        if rule.object is None:
            return True
        first, last = clause_around(text, start, end)
        clause = text[first:last]
        return _is_disguised(clause) or _matches_clause(rule.object, clause)


class TextScanner:
    """Patterns, searched for in a text itself and behind its disguises."""

    def __init__(self, patterns: Sequence[RulePattern], longest: int | None) -> None:
        """Compile `patterns`.

        Args:
            patterns: numbered in this order.
            longest: characters of the longest match, in the original text, that counts; None for
                no limit.
        """
        self._patterns = PatternScanner(patterns)
        self._longest = longest

    def hits(self, text: "_Readable") -> Iterator[tuple[int, int, int]]:
        """Yield pattern number, start and end in the original text, possibly more than once."""
        yield from self._unfolded(text, self._scan(text, text.readings))

    def plain_hits(self, text: "_Readable") -> Iterator[tuple[int, int, int]]:
        """Yield those of the text itself and of its markup, as `hits` does."""
        yield from self._unfolded(text, self._scan(text, text.markup))

    def _unfolded(
        self, text: "_Readable", hits: Iterator[tuple[int, int, int]]
    ) -> Iterator[tuple[int, int, int]]:
        folded = text.folded
        if folded is None:
            yield from hits
            return
        for number, start, end in hits:
            first, last = folded.origin(start), folded.origin(end - 1)
            if self._longest is None or last - first < self._longest:
                yield number, first, last + 1

    def _scan(
        self, text: "_Readable", readings: Iterable[TextReading]
    ) -> Iterator[tuple[int, int, int]]:
        """Yield what the patterns match in the text itself and in readings of it."""
        yield from self._patterns.scan(text.raw)
        for reading in readings:
            for number, start, end in self._patterns.scan(reading.text):
                # Sorted, because the text written backwards runs from its end to its beginning.
                first, last = sorted((reading.origin(start), reading.origin(end - 1)))
                is_short = self._longest is None or last - first < self._longest
                if is_short and reading.trusts(first, last + 1):
                    yield number, first, last + 1


class _Readable:
    """A text in all the ways in which it is read; each is made once, for rules and exceptions."""

    def __init__(self, text: str, *, joins: bool = False) -> None:
        """Take a text.

        Args:
            text: as it was given.
            joins: read it with its pieces joined too, wherever they stand.
        """
        text = with_plain_quotes(without_halves(text))
        self.folded = Folded(text) if is_foldable(text) else None
        """The folded text; None where folding changes nothing."""
        # Each character is one byte, so that positions in `raw` are positions in the text.
        self.raw = (text if self.folded is None else self.folded.text).encode("latin-1", "replace")
        self._signs = _SIGNS.Match(self.raw) or ()
        """The numbers of the ways of reading that the text asks for; most texts ask for none."""
        self.may_join = joins and _PIECES in self._signs
        """Whether the text shows pieces that are to be joined."""

    def place_of(self, position: int) -> int:
        """Return the position in the text as given of a character of `raw`."""
        return position if self.folded is None else self.folded.origin(position)

    def read_joined(self) -> Iterator[JoinedReading]:
        """Yield the text with its pieces joined."""
        return find_joined(self.raw)

    @cached_property
    def disguises(self) -> list[TextReading]:
        """The ways to read what stands behind disguises, where the text shows any."""
        return list(find_readings(self.raw)) if _DISGUISE in self._signs else []

    @cached_property
    def markup(self) -> list[TextReading]:
        """The text without its markup, where it has any."""
        return [Unmarked(self.raw)] if _MARKUP in self._signs else []

    @property
    def readings(self) -> list[TextReading]:
        return [*self.disguises, *self.markup]


# Apart from the keys of patterns: what counts characters would multiply the states of their set.
_SIGNS = compile_set((DISGUISE, MARKUP, PIECES))
_DISGUISE, _MARKUP, _PIECES = range(3)


def _is_disguised(clause: str) -> bool:
    """Whether a clause may have another reading."""
    readable = _Readable(clause)
    return readable.folded is not None or bool(readable.readings)


def _matches_clause(pattern: RulePattern, clause: str) -> bool:
    return _compiled(pattern.regex).search(clause.encode("latin-1", "replace")) is not None


_compiled = lru_cache(maxsize=64)(compile_pattern)


def _weaken_finding(finding: RuleFinding) -> RuleFinding:
    return replace(finding, severity=round(finding.severity * UNPROVED, 3))


def _reads_as_harmful(text: str, finding: RuleFinding) -> bool:
    """Whether the model reads harm in the request as a whole or in the clause of a finding."""
    first, last = clause_around(text, finding.start, finding.end)
    readings = (text, text[first:last])
    return any(harm_probability(reading) >= READS_AS_HARMFUL for reading in readings)


def _is_supported(finding: RuleFinding, found: Sequence[RuleFinding]) -> bool:
    """Whether another rule finds something beside a finding."""
    return any(
        other.rule != finding.rule
        and other.severity > UNPROVED
        and (0 <= other.start - finding.end < NEARBY or 0 <= finding.start - other.end < NEARBY)
        for other in found
    )


def _merge_findings(findings: Sequence[RuleFinding]) -> list[RuleFinding]:
    """Merge overlapping findings of the same rule; the highest severity wins."""
    merged: list[RuleFinding] = []
    for finding in findings:
        last = merged[-1] if merged else None
        if last and last.rule == finding.rule and finding.start < last.end:
            merged[-1] = replace(
                last,
                end=max(last.end, finding.end),
                severity=max(last.severity, finding.severity),
                unread=last.unread and finding.unread,
            )
        else:
            merged.append(finding)
    return merged


_BEFORE = {
    0.4: r"\b(?:i|we) (?:can ?not|can.t|won.t|will not|would not|wouldn.t|am not able to"
    r"|am unable to|refuse to)\b[^.!?\n]{0,40}$",
    0.5: r"\b(?:never|(?:do|does|did|must|should|would|could) ?n[o.]t|not (?:to|okay|ok)"
    r"|avoid(?:ing)?|stop(?:ping)?|prevent(?:ing|s)?|illegal to|wrong to|against|myth that"
    r"|claim(?:s|ed)? that|false(?:ly)?|protect \w{1,12} from)\b[^.!?\n]{0,24}$",
}
"""Factors for words before a match in the same sentence."""
_AROUND = {
    0.4: r"\b(?:in|on|for) (?:call of duty|gta|grand theft auto|the sims|minecraft|fortnite|skyrim"
    r"|roblox|dark souls|elden ring|(?:a|the|my|this) (?:video ?|board ?|computer )?game)\b",
    0.6: r"\b(?:prevent(?:ing|ion|s)?|protect(?:ing|ion|s)?"
    r"|defend(?:ing)? (?:against|myself|yourself)|defen[cs]es?|detect(?:ing|ion)?"
    r"|recogni[sz]e|safeguard\w{0,4}|mitigat\w{1,4}|warning signs"
    r"|raise awareness|awareness of|(?:dangers?|harms?|risks?) of|victims? of|survivors?"
    r"|consequences of|penalt(?:y|ies)|punish\w{2,5}|debunk\w{0,3}|combat(?:ing|ting)?|unlike)\b",
    0.75: r"\b(?:history|historical(?:ly)?|century|museum|documentary|lecture|textbook|definition"
    r"|according to|legal consequences|laws? (?:against|about|on)|illegal|crime in which|police"
    r"|arrested|convicted|sentenced|accused|report(?:ed|ing|s)? (?:that|it|this|a|to))\b",
    0.85: r"\b(?:novel|fiction(?:al)?|movie|film|screenplay|characters?|video ?games?|thriller"
    r"|short story|play)\b",
    1.15: r"\b(?:step[- ]by[- ]step|detailed (?:guide|instructions|plan|tutorial)|undetected"
    r"|without (?:getting|being) (?:caught|detected|noticed|seen)|get(?:ting)? away with"
    r"|untraceable|at home|ingredients|(?:materials|equipment) (?:needed|required))\b",
}
"""Factors for words on either side of a match."""

_GOVERNED = 0.35
"""Factor for a match whose last words are what somebody prevents, reports or studies."""
_GOVERNOR = compile_pattern(
    r"\b(?:prevent(?:ing|s|ion of)?|detect(?:ing|s|ion of)?|recogni[sz](?:e|es|ing)|spot(?:ting)?"
    r"|report(?:ing|s)?|combat(?:ing|ting)?|fight(?:ing)?|counter(?:ing|act)?|deter(?:ring|s)?"
    r"|against|protect(?:s|ing|ion)? (?:\w{1,12} ){0,4}from|victims? of|survivors? of"
    r"|cop(?:e|ing) with"
    r"|deal(?:ing)? with|recover(?:y|ing)? from|heal(?:ing)? from|reduc(?:e|es|ing)|curb(?:ing)?"
    r"|debunk(?:ing|s)?|condemn(?:ing|s)?|denounc(?:e|es|ing)|investigat(?:e|es|ing|ion of)"
    r"|prosecut(?:e|es|ing|ion of)|punish(?:ing|ment for)?|penalt(?:y|ies) for|laws? (?:on|about)"
    r"|definition of|meaning of|concept of|history of|difference between|effects? of|impact of"
    r"|consequences of|dangers? of|risks? of|harms? of|causes? of|ethics of|awareness (?:of|about)"
    r"|warning signs of|signs of|stop (?:people|others|someone|my \w{2,12}) from|fact[ -]checks?"
    r"|surrounding|expos(?:e|ing)|why (?:it is|it.s|is it) (?:illegal|wrong|bad|dangerous|harmful))"
    r"(?:[^\w.!?\n]{1,3}[\w'-]{1,15}){1,5}$"
)

_CUES_BEFORE = [(factor, compile_pattern(pattern)) for factor, pattern in _BEFORE.items()]
_CUES_AROUND = [(factor, compile_pattern(pattern)) for factor, pattern in _AROUND.items()]


def weigh_severity(severity: float, before: bytes, match: bytes, after: bytes) -> float:
    """Lower or raise a severity according to the words around a match.

    Args:
        severity: of the rule.
        before: the last `REACH` characters before the match.
        match: the matched text.
        after: the first `REACH` characters after it.

    Returns:
        0 to 1, rounded to three digits.
    """
    factor = 1.0
    around = b" ".join((before, match, after))
    for weight, cue in _CUES_BEFORE:
        if cue.search(before):
            factor *= weight
    for weight, cue in _CUES_AROUND:
        if cue.search(around):
            factor *= weight
    governor = _GOVERNOR.search(before + match)
    if governor and governor.start() != len(before):  # else it belongs to the pattern
        factor *= _GOVERNED
    return round(min(1.0, severity * min(CEILING, max(FLOOR, factor))), 3)
