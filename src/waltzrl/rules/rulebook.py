"""The rules of stage 1, ready to read a request or a reply."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import get_args

from waltzrl.errors import InputError
from waltzrl.rules.finding import RuleFinding
from waltzrl.rules.pack import DEFAULT_PACKS, digest_of, load_pack
from waltzrl.rules.reader import Reader
from waltzrl.rules.rule import Rule, Side

OPENING = 320
"""Characters at the beginning of a reply that are read for a refusal."""


def load_rulebook(packs: Sequence[str | Path] = DEFAULT_PACKS) -> "Rulebook":
    """Read `packs`: names of packs that come with waltzrl, or paths of TOML files.

    Raises:
        InputError: a file cannot be read, or two rules have the same id.
    """
    loaded = [load_pack(pack) for pack in packs]
    rules = tuple(chain.from_iterable(pack.rules for pack in loaded))
    ids = [rule.id for rule in rules]
    if twice := {name for name in ids if ids.count(name) > 1}:
        raise InputError(f"two rules are called {min(twice)!r}; rename one, or load one pack once")
    return Rulebook(rules, digest_of(loaded))


class Rulebook:
    """All rules, compiled."""

    def __init__(self, rules: tuple[Rule, ...], digest: str) -> None:
        self.rules = rules
        self.digest = digest
        """Names what decides: the hash of the packs."""
        by_side = {side: [r for r in rules if r.side == side] for side in get_args(Side)}
        self._request = Reader(by_side["request"])
        self._reply = Reader(by_side["reply"], local=True)
        self._refusal = Reader(by_side["refusal"])
        self.horizon = self._reply.horizon
        """Characters within which all lies that decides a finding in a reply.

        A finding that ends more than `horizon` characters before the end of a text is the same
        whatever follows, and one that starts more than `horizon` characters after the beginning
        is the same whatever came before.
        """

    def request(self, text: str) -> tuple[RuleFinding, ...]:
        """Find what is wrong in what the user asks, in order of place."""
        return self._request.read(text)

    def reply(self, text: str) -> tuple[RuleFinding, ...]:
        """Find what is wrong in what the assistant says, in order of place."""
        return self._reply.read(text)

    def refuses(self, text: str) -> bool:
        """Whether the reply begins by declining, wholly or in part."""
        return self._refusal.speaks(text[:OPENING])
