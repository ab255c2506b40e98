"""Selects and counts entries of a log, and writes them as rows; reads line by line.

log -> Query.matches -> entries -> tally(), or rows of a table
"""

import re
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from pathlib import Path
from typing import Literal

from waltzrl.errors import InputError
from waltzrl.store.audit.keys import digest_under
from waltzrl.store.audit.note import NoteError
from waltzrl.store.audit.reading import read_backwards, read_entries
from waltzrl.store.audit.record import DecisionRecord, Entry, RoundRecord

AGO = re.compile(r"(\d+(?:\.\d+)?)([smhdw])")
UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell that begins so would be a formula in a spreadsheet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """Which entries; a field that is empty selects all of them."""

    since: str = ""
    """The time as `moment` returns it; entries at this time are selected."""
    until: str = ""
    """Entries at this time are not."""
    before: int | None = None
    """The number below which entries are selected."""
    who: str = ""
    subject: str = ""
    """Digest."""
    rule: str = ""
    """The rule's name, or the beginning of it before a slash: `harm` selects `harm/weapons`."""
    category: str = ""
    decision: str = ""
    bundle: str = ""
    policy: str = ""
    model: str = ""

    def matches(self, entry: Entry) -> bool:
        """Return whether the query selects an entry; one that is no decision only by its time."""
        if self.before is not None and entry.seq >= self.before:
            return False
        # Times are texts of one form (UTC, six decimals), which sort as the times do.
        if (self.since and entry.time < self.since) or (self.until and entry.time >= self.until):
            return False
        record = entry.decision
        if record is None:
            return not (self.rule or self.category or any(self._exact.values()))
        rounds = record.rounds
        return (
            all(
                not wanted or wanted == getattr(record, name)
                for name, wanted in self._exact.items()
            )
            and (
                not self.rule
                or any(f"{rule}/".startswith(f"{self.rule}/") for rule in _list_rules(record))
            )
            and (not self.category or any(turn.category == self.category for turn in rounds))
        )

    @property
    def _exact(self) -> dict[str, str]:
        names = ("who", "subject", "decision", "bundle", "policy", "model")
        return {name: getattr(self, name) for name in names}


def select(folder: Path, query: Query) -> Iterator[Entry]:
    """Yield the selected entries, the oldest first.

    Raises:
        InputError: there is no log, or a line is not an entry.
    """
    return filter(query.matches, read_entries(folder))


def newest(folder: Path, query: Query, count: int) -> list[Entry]:
    """Return the last selected entries, the newest last; older files are not read.

    Raises:
        InputError: there is no log, or a line is not an entry.
    """
    selected: deque[Entry] = deque()
    for entries in read_backwards(folder):
        last = deque(filter(query.matches, entries), maxlen=count - len(selected))
        selected.extendleft(reversed(last))
        if len(selected) == count:
            break
    return list(selected)


def moment(text: str, now: datetime) -> str:
    """Return a point in time as the log writes it.

    Args:
        text: ISO 8601, in UTC where it names no zone, or a duration back from now: 30m, 2h, 7d.
        now: with a zone.

    Raises:
        InputError: it is neither.
    """
    try:
        if ago := AGO.fullmatch(text.strip()):
            when = now - timedelta(**{UNITS[ago[2]]: float(ago[1])})
        else:
            when = datetime.fromisoformat(text.strip())
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return when.astimezone(UTC).isoformat(timespec="microseconds")
    except (ValueError, OverflowError):
        raise InputError(
            f"got the time {text!r}; need one such as 2026-11-30, 2026-11-30T12:00+01:00, or a "
            "duration back from now such as 30m, 2h or 7d"
        ) from None


def subject_digest(key: Path, subject: str) -> str:
    """Return the digest under which a log knows a subject.

    Raises:
        InputError: the log's key cannot be read.
    """
    try:
        return digest_under(key, subject.encode("utf-8", "surrogatepass"))
    except (NoteError, OSError) as error:
        raise InputError(
            f"the log knows a subject by a digest only, whose key is in {key}.digest: {error}; "
            "give the file of the log's private key with --key"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDraft:
    """A draft that was sent although its review would have changed it."""

    id: str
    """Of the request."""
    would: Literal["revised", "refused", "unreviewed"]
    """What would have become of it; what follows where nobody reviewed is the operator's choice."""
    risk: float | None
    category: str
    rules: tuple[str, ...]


def observed_drafts(records: Iterable[DecisionRecord]) -> list[ObservedDraft]:
    """Return the drafts that were only observed, the riskiest first."""
    drafts = [
        ObservedDraft(
            id=record.id,
            would=_find_outcome(record.rounds[0]),
            risk=record.rounds[0].risk,
            category=record.rounds[0].category,
            rules=record.rounds[0].rules,
        )
        for record in records
        if record.decision == "draft" and record.rounds and _was_flagged(record.rounds[0])
    ]
    return sorted(drafts, key=lambda draft: -(draft.risk or 0.0))


def _was_flagged(first: RoundRecord) -> bool:
    return first.unsafe or first.overrefuse or first.doubtful or not first.well_formed


def _find_outcome(first: RoundRecord) -> Literal["revised", "refused", "unreviewed"]:
    if not first.well_formed:
        return "unreviewed"
    return "refused" if first.unsafe and first.action == "refuse" else "revised"


FIELDS = (
    *("id", "client_request_id", "trace_id", "decision", "reason", "who", "subject", "api"),
    *("model", "bundle", "policy", "stage", "mode", "prompt_tokens", "reply_tokens", "total_ms"),
    "usd",
)
"""Columns that are fields of a decision's record."""
COLUMNS: Mapping[str, Callable[[DecisionRecord], object]] = {
    **{name: attrgetter(name) for name in FIELDS},
    # A lambda, because the function is defined further down.
    "rule": lambda record: _list_rules(record),
    "category": lambda record: _drop_repeats(turn.category for turn in record.rounds),
    "failure": lambda record: _drop_repeats(turn.failure for turn in record.rounds),
    "risk": lambda record: record.rounds[0].risk if record.rounds else None,
    "model_risk": lambda record: record.rounds[0].model_risk if record.rounds else None,
    "rules_risk": lambda record: record.rounds[0].rules_risk if record.rounds else None,
    "rounds": lambda record: len(record.rounds),
}
"""Columns of a decision besides `time` and `seq`; risks are those of the draft."""
COUNTED = (
    *("decision", "reason", "who", "rule", "category", "failure", "model", "bundle", "policy"),
    *("stage", "api", "mode", "day"),
)
"""The fields that decisions can be counted by."""


def tally(entries: Iterable[Entry], by: Sequence[str]) -> Counter[tuple[str, ...]]:
    """Count decisions by their values of some fields.

    A decision with several rules counts once for each of them.

    Args:
        entries: any; those that are no decisions are skipped.
        by: of `COUNTED`.

    Raises:
        InputError: a field is not.
    """
    for name in by:
        if name not in COUNTED:
            raise InputError(f"cannot count by {name!r}; choose from {', '.join(COUNTED)}")
    counts: Counter[tuple[str, ...]] = Counter()
    for entry in entries:
        if entry.decision is not None:
            keys: list[tuple[str, ...]] = [()]
            for name in by:
                values = _list_values(entry, entry.decision, name)
                keys = [(*key, value) for key in keys for value in values]
            counts.update(keys)
    return counts


def table_rows(entries: Iterable[Entry]) -> Iterator[dict[str, str]]:
    """Yield a row of text cells for each decision, safe to open in a spreadsheet."""
    for entry in entries:
        record = entry.decision
        if record is not None:
            cells = {name: _escape_formula(value(record)) for name, value in COLUMNS.items()}
            yield {"time": entry.time, "seq": str(entry.seq), **cells}


def _list_values(entry: Entry, record: DecisionRecord, name: str) -> tuple[str, ...]:
    if name == "day":
        return (entry.time[:10],)
    value = COLUMNS[name](record)
    if isinstance(value, tuple):
        return value or ("-",)
    return (str(value) or "-",)


def _escape_formula(value: object) -> str:
    if isinstance(value, tuple):
        value = " ".join(value)
    text = "" if value is None else str(value)
    return f"'{text}" if text.startswith(FORMULA) else text


def _list_rules(record: DecisionRecord) -> tuple[str, ...]:
    return _drop_repeats(rule for turn in record.rounds for rule in turn.rules)


def _drop_repeats(values: Iterable[str]) -> tuple[str, ...]:
    """Return each value that is not empty, once."""
    return tuple(dict.fromkeys(value for value in values if value))
