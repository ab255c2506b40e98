"""Rules, and the packs they come in: TOML files."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache, partial
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Literal

import msgspec

from waltzrl.agents.rules.calls import CALL_SIDES, CallSide, as_read
from waltzrl.agents.rules.pattern import RulePattern
from waltzrl.agents.rules.request_model import load_request_model
from waltzrl.agents.rules.scan import compile_pattern
from waltzrl.errors import InputError

HARMFUL_PACKS = ("violence", "crime", "hate", "self_harm", "sexual", "misinformation")
DEFAULT_PACKS = (*HARMFUL_PACKS, "malicious", "privacy", "refusals", "tool_calls")
"""Packs that a gateway loads unless told otherwise; each is `packs/NAME.toml` of this folder."""
SHIPPED_PACKS = (*DEFAULT_PACKS, "injection")
"""All packs that come with waltzrl; `injection` is for what a model reads, not for what it says."""
CATEGORIES = (
    "violence_harm",
    "weapons",
    "illegal_activity",
    "unauthorized_access",
    "malicious_instruction",
    "privacy_violation",
    "hate_speech",
    "harassment",
    "self_harm",
    "sexual_content",
    "child_safety",
    "misinformation",
    "dangerous_call",
    "refusal",
)
"""The subjects of rules; `refusal` is for replies that decline and is not a harm."""
NO_HARM_OF_TEXT = ("dangerous_call", "refusal")
"""Subjects of rules that are no subject of what a text says."""

Side = Literal["request", "reply", "refusal", "support", "method", CallSide]
"""The text that a rule reads: the user's request, the reply, or the opening of a reply that
declines; in a reply to somebody in a crisis the words that support, and those that say how to
harm oneself; and parts of tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Patterns with one meaning."""

    id: str
    """`pack/name`, unique within a rulebook."""
    category: str
    severity: float
    """The severity, 0 to 1, before the context is weighed."""
    side: Side
    patterns: tuple[RulePattern, ...]
    """All patterns."""
    weak: frozenset[RulePattern]
    """Those that are no reason to flag a text on their own."""
    ambiguous: frozenset[RulePattern]
    """Those that are such a reason only in a request that reads as harmful."""
    object: RulePattern | None
    """The words for whom or what is harmed: what a request means is unclear without it, in the same
    clause.
    """
    exceptions: tuple[RulePattern, ...]
    """A match of `patterns` that ends within a match of one of these does not count."""
    example: str
    """A text that the rule must match."""
    twins: tuple[str, ...]
    """Similar, harmless texts that it must not match."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePack:
    """One file of rules."""

    name: str
    """The file name without suffix; the prefix of the id of every rule."""
    version: int
    digest: str
    """SHA-256 of the file and of the shared words and frames, in hexadecimal."""
    rules: tuple[Rule, ...] = field(hash=False)


def load_pack(source: str | Path) -> RulePack:
    """Read the pack `source`: the name of one that comes with waltzrl, or a path.

    Raises:
        InputError: the file cannot be read, or a rule in it is invalid.
    """
    return _parse_pack(*_read_source(source))


@lru_cache(maxsize=64)  # a gateway reads the same packs for each bundle
def _parse_pack(name: str, path: str, content: bytes) -> RulePack:
    try:
        file = msgspec.convert(tomllib.loads(content.decode("utf-8")), _File)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(f"{path}: {error}; correct the file, see docs/rules.md") from None
    shared = shared_words()
    if clashes := shared.keys() & file.words.keys():
        raise InputError(f"{path}: word list {min(clashes)!r} comes with waltzrl; rename yours")
    words = shared | {name: "|".join(listed) for name, listed in file.words.items()}
    rules = tuple(_parse_rule(name, path, row, words) for row in file.rule)
    return RulePack(
        name=name,
        version=file.version,
        digest=sha256(_hash_shared_files() + content).hexdigest(),
        rules=rules,
    )


class _Row(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: str
    category: str
    severity: float
    side: Side
    example: str
    patterns: list[str] = []
    ambiguous: list[str] = []
    weak: list[str] = []
    object: str = ""
    twins: list[str] = []
    exceptions: list[str] = msgspec.field(default_factory=list, name="except")


class _File(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    version: int
    rule: list[_Row]
    words: dict[str, list[str]] = {}


def _read_source(source: str | Path) -> tuple[str, str, bytes]:
    if source in SHIPPED_PACKS:
        return str(source), f"{source}.toml", read_shipped(str(source))
    path = Path(source)
    try:
        return path.stem, str(path), path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path}: {error.strerror}; give a path, or one of {', '.join(SHIPPED_PACKS)}"
        ) from None


@cache
def shared_words() -> dict[str, str]:
    """Return the word lists that every pack may use."""
    lists = tomllib.loads(read_shipped("words").decode("utf-8"))
    return {name: "|".join(listed) for name, listed in lists.items()}


@cache
def _hash_shared_files() -> bytes:
    shared = read_shipped("words") + read_shipped("frames") + load_request_model().digest.encode()
    return sha256(shared).digest()


@cache
def read_shipped(name: str) -> bytes:
    """Return the content of the file `name` of the folder of packs."""
    return (files("waltzrl.agents.rules") / "packs" / f"{name}.toml").read_bytes()


def _parse_rule(pack: str, path: str, row: _Row, words: dict[str, str]) -> Rule:
    where = f"{path}: rule {row.id!r}"
    _check_row(row, where)
    try:
        pattern_of = partial(RulePattern, words=words, whole_words=row.side not in CALL_SIDES)
        sure, ambiguous, weak = (
            tuple(pattern_of(source=source) for source in sources)
            for sources in (row.patterns, row.ambiguous, row.weak)
        )
        patterns = (*sure, *ambiguous, *weak)
        exceptions = tuple(pattern_of(source=source) for source in row.exceptions)
        harmed = pattern_of(source=row.object) if row.object else None
        if pack not in SHIPPED_PACKS:  # ours are compiled by the tests, and then when needed
            for pattern in (*patterns, *exceptions, *filter(None, [harmed])):
                compile_pattern(pattern.regex)
    except ValueError as error:
        raise InputError(f"{where}: {error}") from None
    return Rule(
        id=f"{pack}/{row.id}",
        category=row.category,
        severity=row.severity,
        side=row.side,
        patterns=patterns,
        weak=frozenset(weak),
        ambiguous=frozenset(ambiguous),
        object=harmed,
        exceptions=exceptions,
        example=as_read(row.side, row.example),
        twins=tuple(as_read(row.side, twin) for twin in row.twins),
    )


def _check_row(row: _Row, where: str) -> None:
    """Raise InputError if something is wrong with the row of a rule."""
    if row.category not in CATEGORIES:
        raise InputError(
            f"{where} has category {row.category!r}; use one of {', '.join(CATEGORIES)}"
        )
    if not 0 < row.severity <= 1:
        raise InputError(f"{where} has severity {row.severity:g}; use more than 0, at most 1")
    if not (row.patterns or row.ambiguous or row.weak):
        raise InputError(f"{where} has no patterns; add some, or remove it")
    for key, given in (
        ("ambiguous patterns", row.ambiguous),
        ("weak patterns", row.weak),
        ("an object", row.object),
    ):
        if given and row.side != "request":
            raise InputError(f"{where} has {key}; only rules for requests can have that")
    if not row.twins:
        raise InputError(f"{where} has no twins; add harmless texts that it must not match")


def digest_of(packs: Sequence[RulePack]) -> str:
    """Return the SHA-256 over the digests of packs, in hexadecimal; identifies a rulebook."""
    return sha256("".join(pack.digest for pack in packs).encode()).hexdigest()
