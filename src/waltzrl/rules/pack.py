"""Reads packs: TOML files of rules."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.rules.pattern import expand
from waltzrl.rules.rule import CATEGORIES, Rule, Side
from waltzrl.rules.scan import compiled

HARMFUL_PACKS = ("violence", "crime", "hate", "self_harm", "sexual", "misinformation")
DEFAULT_PACKS = (*HARMFUL_PACKS, "malicious", "privacy", "refusals")
"""Packs that come with waltzrl; each is `packs/NAME.toml` of this folder."""


class _Row(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: str
    category: str
    severity: float
    side: Side
    patterns: list[str]
    example: str
    twin: str


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    version: int
    rule: list[_Row]
    words: dict[str, list[str]] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePack:
    """One file of rules."""

    name: str
    """The file's name without its ending; begins the id of every rule."""
    version: int
    digest: str
    """SHA-256 of the file and of the shared words, in hexadecimal."""
    rules: tuple[Rule, ...]


def load_pack(source: str | Path) -> RulePack:
    """Read the pack `source`: the name of one that comes with waltzrl, or a path.

    Raises:
        InputError: the file cannot be read, or a rule in it is impossible.
    """
    name, path, content = _read(source)
    try:
        file = msgspec.convert(tomllib.loads(content.decode("utf-8")), _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}; mend the file, or see docs/rules.md") from None
    shared, shared_digest = _shared_words()
    if taken := shared.keys() & file.words.keys():
        raise InputError(f"{path}: word list {min(taken)!r} comes with waltzrl; rename yours")
    words = shared | {name: "|".join(listed) for name, listed in file.words.items()}
    rules = tuple(_rule(name, path, row, words) for row in file.rule)
    return RulePack(
        name=name,
        version=file.version,
        digest=sha256(shared_digest + content).hexdigest(),
        rules=rules,
    )


def _read(source: str | Path) -> tuple[str, str, bytes]:
    if source in DEFAULT_PACKS:
        return str(source), f"{source}.toml", _shipped(str(source))
    path = Path(source)
    try:
        return path.stem, str(path), path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; say a path, or one of {', '.join(DEFAULT_PACKS)}"
        ) from None


@cache
def _shared_words() -> tuple[dict[str, str], bytes]:
    """Read the word lists that every pack may use; return them and their digest."""
    content = _shipped("words")
    lists = tomllib.loads(content.decode("utf-8"))
    return {name: "|".join(listed) for name, listed in lists.items()}, sha256(content).digest()


def _shipped(name: str) -> bytes:
    return (files("waltzrl.rules") / "packs" / f"{name}.toml").read_bytes()


def _rule(pack: str, path: str, row: _Row, words: dict[str, str]) -> Rule:
    where = f"{path}: rule {row.id!r}"
    if row.category not in CATEGORIES:
        raise InputError(
            f"{where} has category {row.category!r}; say one of {', '.join(CATEGORIES)}"
        )
    if not 0 < row.severity <= 1:
        raise InputError(f"{where} has severity {row.severity:g}; say more than 0, at most 1")
    try:
        patterns = tuple(expand(source, words) for source in row.patterns)
        if pack not in DEFAULT_PACKS:
            for pattern in patterns:
                compiled(pattern.regex)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Rule(
        id=f"{pack}/{row.id}",
        category=row.category,
        severity=row.severity,
        side=row.side,
        patterns=patterns,
        example=row.example,
        twin=row.twin,
    )


def digest_of(packs: Sequence[RulePack]) -> str:
    """Name what `packs` decide with: SHA-256 over their digests, in hexadecimal."""
    return sha256("".join(pack.digest for pack in packs).encode()).hexdigest()
