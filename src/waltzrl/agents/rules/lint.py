"""Checks a pack before it is used."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzrl.agents.rules.frames import Frame, FrameScanner, load_shipped_frames
from waltzrl.agents.rules.pack import Rule, RulePack, load_pack
from waltzrl.agents.rules.pattern import RulePattern
from waltzrl.agents.rules.rulebook import RuleFinding, RuleReader, load_rulebook
from waltzrl.agents.rules.scan import compile_pattern
from waltzrl.errors import InputError

FLAGGED = 0.3
"""Severity above which a finding makes a text unsafe, at the usual threshold of 0.7."""
EVERYDAY = """
about add after and are as by do for from in into is or using age all also always am answer any
ask away back be because become been before being best big black blue book boy bring buy call car
change child children city clean close cold come day different do door drink drive easy eat end
every explain family far fast find fire first following food friend full game garden get girl give
go good great green group hand happy have he head help her here high his home hot hour how idea if
important in it keep kind know large last learn left letter life light like line list little live
long look love make man many may me mean meet men milk minutes money month more most mother move
music my name need new next night not now number of off oil old on one only open order our out
over page paper part people place plan play please point poor put question quick rain read real
recipe record red rest right road room run salt say school sea see sell send short should show
sister sleep slow small soon speak spend spring stand start stay still stop story street strong
student study sugar summer sun table take talk teach tell text thank the their them these they
thing think this time to today together town travel tree true try turn under until up us use visit
wait walk want warm was wash watch water way we week well went what when which while white who
will wind winter with word work world write wrong year yellow yes you young your 10 12 15 20 50
100
"""
"""Words that ordinary text is full of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleHits:
    """How many texts a rule flags; its own example and twins are among them."""

    rule: str
    harmful: int
    benign: int


def count_hits(
    packs: Sequence[str | Path], harmful: Iterable[str] = (), benign: Iterable[str] = ()
) -> list[RuleHits]:
    """Count the texts that each rule of `packs` flags.

    Args:
        packs: names of packs that come with waltzrl, or paths of TOML files.
        harmful: requests that rules for requests should flag.
        benign: requests that they should not.

    Raises:
        InputError: a pack cannot be read.
    """
    book = load_rulebook(packs)
    right = Counter(rule for text in harmful for rule in _list_flagging_rules(book.request(text)))
    wrong = Counter(rule for text in benign for rule in _list_flagging_rules(book.request(text)))
    for rule in book.rules:
        reader = RuleReader([rule])
        right[rule.id] += reader.matches(rule.example)
        wrong[rule.id] += sum(map(reader.matches, rule.twins))
    return [
        RuleHits(rule=rule.id, harmful=right[rule.id], benign=wrong[rule.id]) for rule in book.rules
    ]


def _list_flagging_rules(findings: Iterable[RuleFinding]) -> set[str]:
    return {finding.rule for finding in findings if finding.severity > FLAGGED}


def lint_pack(source: str | Path) -> list[str]:
    """List the problems of the pack `source`, one line each.

    Args:
        source: the name of a pack that comes with waltzrl, or the path of a TOML file.
    """
    try:
        pack = load_pack(source)
    except InputError as error:
        return [str(error)]
    return [f"{pack.name}: {problem}" for problem in _find_pack_problems(pack)]


def lint_frames() -> list[str]:
    """List the problems of the frames that come with waltzrl, one line each."""
    return [
        f"frames: {problem}"
        for frame in load_shipped_frames()
        for problem in _find_frame_problems(frame)
    ]


def _find_frame_problems(frame: Frame) -> Iterator[str]:
    reader = FrameScanner([frame])
    if not reader.holds(frame.example):
        yield f"frame {frame.id!r} is not that of its example {frame.example!r}"
    for twin in frame.twins:
        if reader.holds(twin):
            yield f"frame {frame.id!r} is that of its twin {twin!r}; narrow a pattern"


def _find_pack_problems(pack: RulePack) -> Iterator[str]:
    for name, times in Counter(rule.id for rule in pack.rules).items():
        if times > 1:
            yield f"{times} rules are called {name!r}; rename all but one"
    uses = Counter((r.side, p.regex) for r in pack.rules for p in r.patterns)
    for rule in pack.rules:
        for pattern in rule.patterns:
            if uses[rule.side, pattern.regex] > 1:
                yield f"rule {rule.id!r} repeats a pattern: {pattern.source!r}"
            if pattern.has_literal_mark:
                yield (
                    f"rule {rule.id!r} looks for the character ! in {pattern.source!r}; move it"
                    " behind a space and before a word, or write [!] if you mean that"
                )
            if rule.side in {"request", "reply"} and (word := _find_everyday_word(pattern)):
                yield (
                    f"rule {rule.id!r} reads every text with {word!r}; put ! before a rarer word"
                    f" of {pattern.source!r}"
                )
        yield from _find_example_problems(rule)


def _find_everyday_word(pattern: RulePattern) -> str:
    """Return an everyday word that the key of `pattern` is found in, or nothing."""
    match = compile_pattern(pattern.key).search("\n".join(EVERYDAY.split()).encode())
    return match[0].decode() if match else ""


def _find_example_problems(rule: Rule) -> Iterator[str]:
    """Apply the rule to its own example and twins."""
    reader = RuleReader([rule])
    if not reader.matches(rule.example):
        yield f"rule {rule.id!r} does not match its example {rule.example!r}"
    for twin in rule.twins:
        if findings := reader.read(twin):
            words = twin[findings[0].start : findings[0].end]
            yield f"rule {rule.id!r} matches {words!r} in its harmless twin; narrow a pattern"
