"""Reads the entries of a log, shows them to people, and proves single ones to others.

Nothing is verified here: entries are only as trustworthy as `verify` says the log is.
"""

from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.files import whole_lines
from waltzrl.records import OTHER_LANGUAGE
from waltzrl.store.audit.merkle import inclusion_proof, leaf_hash
from waltzrl.store.audit.note import Checkpoint, NoteError, read_notes
from waltzrl.store.audit.record import DecisionRecord, Entry, RoundRecord
from waltzrl.store.audit.verify import CHECKPOINTS, list_segments

_decoder = msgspec.json.Decoder(Entry)


def read_entries(folder: Path) -> Iterator[Entry]:
    """Yield the log's entries in order; a line that is still being written is skipped.

    Raises:
        InputError: there is no log, or a line is not an entry.
    """
    for path in _list_log_files(folder):
        yield from _read_file(path)


def read_backwards(folder: Path) -> Iterator[Iterator[Entry]]:
    """Yield the entries of each file in order, the newest file first.

    Raises:
        InputError: there is no log, or a line is not an entry.
    """
    yield from map(_read_file, reversed(_list_log_files(folder)))


def find(folder: Path, record_id: str) -> list[Entry]:
    """Return the decisions on a request, one per choice: by our id, or by the client's.

    Raises:
        InputError: the log has none.
    """
    entries = [
        entry
        for entry in read_entries(folder)
        if entry.decision is not None
        and record_id in (entry.decision.id, entry.decision.client_request_id)
    ]
    if not entries:
        raise InputError(f"{folder} holds no decision {record_id!r}; give the id of a request")
    return entries


def one_line(entry: Entry) -> str:
    """Return time, event and, for a decision, request and client as one line of text."""
    start = f"{entry.seq:>8}  {entry.time}  "
    if entry.decision is None:
        missing = f": {entry.unaudited} decisions are not logged" if entry.unaudited else ""
        fields = "".join(f" {name}={value}" for name, value in (entry.notice or {}).items())
        return f"{start}({entry.event}{missing}{fields})"
    record = entry.decision
    return f"{start}{record.decision:<8}  {record.id}  {record.who or '-'}  {record.reason}"


def one_page(entry: Entry) -> str:
    """Return every field on a line of its own, the cause of a decision first."""
    hidden = {"seq", "event", "decision", "unaudited"}
    if entry.decision is not None:
        hidden.add("notice")
    lines = [f"record {entry.seq}", *_format_fields(entry, "", hidden)]
    if entry.decision is not None:
        lines.append(f"  {'why':<24}{explain_decision(entry.decision)}")
        lines += _format_fields(entry.decision, "", {"rounds"})
        for number, turn in enumerate(entry.decision.rounds, start=1):
            lines += [f"  round {number}", *_format_fields(turn, "  ", set())]
    return "\n".join(lines)


def _describe_failure(failure: str) -> list[str]:
    if failure.startswith(OTHER_LANGUAGE):
        return [f"the reviewer is {failure}"]
    return [f"no review by the model: {failure}"] if failure else []


def explain_decision(record: DecisionRecord) -> str:
    """Return the cause of a decision: reason, rules, category, risk and its parts, failure."""
    parts = [record.reason or "nothing was objected to"]
    for number, turn in enumerate(record.rounds, start=1):
        about = [f"rules {', '.join(turn.rules)}"] if turn.rules else []
        about += [f"category {turn.category}"] if turn.category else []
        risks = (("model", turn.model_risk), ("rules", turn.rules_risk))
        known = ", ".join(f"{name} {risk:g}" for name, risk in risks if risk is not None)
        if turn.risk is not None:
            about.append(f"risk {turn.risk:g}" + (f" ({known})" if known else ""))
        about += _describe_failure(turn.failure)
        round_ = f"round {number}: " if len(record.rounds) > 1 else ""
        parts += [round_ + ", ".join(about)] if about else []
    return "; ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """An inclusion proof of RFC 6962, with all that is needed to check it."""

    line: str
    """The entry as it stands in the log; the leaf is SHA-256(0x00 || line)."""
    index: int
    hashes: tuple[str, ...]
    """Audit path in base64, lowest first."""
    checkpoint: str
    """The signed note whose root the path leads to."""


def prove(folder: Path, record_id: str) -> list[Proof]:
    """Return a proof for each decision on a request, against the newest checkpoint.

    Reads the whole log and keeps 32 bytes per record.

    Raises:
        InputError: the log has no such decision, or no checkpoint that covers it yet.
    """
    entries = find(folder, record_id)
    note, size = _newest_checkpoint(folder / CHECKPOINTS)
    # The number of an entry is its place in the log, and so the index of its leaf.
    lines = {entry.seq: b"" for entry in entries}
    leaves = []
    for seq, line in enumerate(chain.from_iterable(map(whole_lines, _list_log_files(folder)))):
        leaves.append(leaf_hash(line[:-1]))
        if seq in lines:
            lines[seq] = line[:-1]
    if len(leaves) < size or max(lines) >= size:
        raise InputError(
            f"{folder}: the newest checkpoint covers {size} records, need one that covers "
            f"{record_id!r}; wait for the next one"
        )
    return [
        Proof(
            line=line.decode(),
            index=seq,
            hashes=tuple(b64encode(h).decode() for h in inclusion_proof(leaves[:size], seq)),
            checkpoint=note,
        )
        for seq, line in lines.items()
    ]


def _list_log_files(folder: Path) -> list[Path]:
    files = list_segments(folder) if folder.is_dir() else {}
    if not files:
        raise InputError(f"{folder} holds no audit log; give the folder that the gateway writes to")
    return list(files.values())


def _read_file(path: Path) -> Iterator[Entry]:
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            yield _decoder.decode(line)
        except ValueError as error:
            raise InputError(
                f"{path}:{number}: not an entry of an audit log ({error}); run `waltzrl audit "
                "verify` on the folder"
            ) from None


def _format_fields(
    struct: Entry | DecisionRecord | RoundRecord, indent: str, hidden: set[str]
) -> list[str]:
    values = {name: getattr(struct, name) for name in struct.__struct_fields__}
    return [
        f"{indent}  {name:<24}{_format_value(value)}"
        for name, value in values.items()
        if name not in hidden
    ]


def _format_value(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value)) or "-"
    return "-" if value is None or value == "" else str(value)


def _newest_checkpoint(path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as file:
            # Unpacking raises ValueError where there is no note at all.
            (note,) = deque(read_notes(file, path.stat().st_size), maxlen=1)
        return note, Checkpoint.parse(note).size
    except (OSError, NoteError, ValueError) as error:
        raise InputError(f"{path}: no readable checkpoint ({error})") from None
