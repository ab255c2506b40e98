"""Says what is wrong with a pack, before it serves."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from waltzrl.errors import InputError
from waltzrl.rules.pack import RulePack, load_pack
from waltzrl.rules.reader import Reader
from waltzrl.rules.rule import Rule


def lint_pack(source: str | Path) -> list[str]:
    """List complaints about the pack `source`, one line each; an empty list is praise.

    Args:
        source: the name of a pack that comes with waltzrl, or the path of a TOML file.
    """
    try:
        pack = load_pack(source)
    except InputError as error:
        return [str(error)]
    return [f"{pack.name}: {complaint}" for complaint in _complaints(pack)]


def _complaints(pack: RulePack) -> Iterator[str]:
    for name, times in Counter(rule.id for rule in pack.rules).items():
        if times > 1:
            yield f"{times} rules are called {name!r}; rename all but one"
    uses = Counter((r.side, p.regex) for r in pack.rules for p in r.patterns)
    for rule in pack.rules:
        for pattern in rule.patterns:
            if uses[rule.side, pattern.regex] > 1:
                yield f"rule {rule.id!r} has a pattern that another has too: {pattern.source!r}"
        yield from _trials(rule)


def _trials(rule: Rule) -> Iterator[str]:
    """Try the rule on its own example and twin."""
    reader = Reader([rule])
    if not reader.read(rule.example):
        yield f"rule {rule.id!r} does not find its example {rule.example!r}"
    if found := reader.read(rule.twin):
        words = rule.twin[found[0].start : found[0].end]
        yield f"rule {rule.id!r} finds {words!r} in its harmless twin; make a pattern narrower"
