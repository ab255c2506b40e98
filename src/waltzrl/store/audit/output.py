"""What `waltzrl audit show` prints: lines, pages, counts, CSV and JSON."""

import csv
import json
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from waltzrl.foundation.options import print_json
from waltzrl.foundation.texts import make_visible
from waltzrl.records import Collaboration
from waltzrl.store.audit.contents import (
    Tombstone,
    content_files,
    contents_for,
    has_nameless_tombstones,
    tombstone_for,
)
from waltzrl.store.audit.note import NoteError, PublicKey
from waltzrl.store.audit.query import COLUMNS
from waltzrl.store.audit.reading import one_line, one_page
from waltzrl.store.audit.record import Entry

ROW = ("time", "seq", *COLUMNS)
"""Columns of a decision."""


def print_request(
    folder: Path, key: Path, entries: Sequence[Entry], *, contents: bool, as_json: bool
) -> None:
    """Print the decisions on one request, and where their texts are or when they were removed."""
    ids = dict.fromkeys(entry.decision.id for entry in entries if entry.decision is not None)
    kept = {id_: contents_for(folder, id_) for id_ in ids} if contents else {}
    removed = {id_: tombstone_for(folder, id_) for id_, texts in kept.items() if not texts}
    if as_json:
        decisions = msgspec.to_builtins(entries)
        words = {id_: msgspec.to_builtins(texts) for id_, texts in kept.items()}
        gone = {
            id_: _describe_removal(left, key) for id_, left in removed.items() if left is not None
        }
        report = {"decisions": decisions, "contents": words, "removed": gone}
        print_json(report if contents else decisions)
        return
    for entry in entries:
        print(make_visible(one_page(entry)))
        record = entry.decision
        assert record is not None, "found by its id"
        # The id of a choice contains a slash, which would be a further part of the path.
        exchange = quote(record.exchange_id or record.id, safe="")
        print(f"  {'memory':<24}/desk/collaborations/{exchange}, if the gateway has a memory")
        if content_files(folder) and not contents:
            print(f"  {'contents':<24}waltzrl audit show {folder} {record.id} --contents")
    for id_, texts in kept.items():
        if not texts:
            print(_explain_absence(folder, id_, removed[id_], key))
        for collaboration in texts:
            print(make_visible(_format_texts(collaboration)))


def _describe_removal(left: Tombstone, key: Path) -> dict[str, str | bool | None]:
    """Return when and why texts were removed, and whether the log's key signed that."""
    at = datetime.fromtimestamp(left.at, UTC).isoformat(timespec="seconds")
    return {"why": left.why, "at": at, "signed": _is_signed(left, key)}


def _explain_absence(folder: Path, id_: str, left: Tombstone | None, key: Path) -> str:
    """Say why there are no texts of a request."""
    if left is None and has_nameless_tombstones(folder):
        return (
            f"no texts of {id_} are kept; whether they ever were is unknown, because texts were "
            "erased beside this log without a note of whose they were"
        )
    if left is None:
        return (
            f"no texts of {id_} were kept: none are beside this log, and waltzrl has removed none; "
            "contents = true stores them, but none of an error"
        )
    at = datetime.fromtimestamp(left.at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    done = "erased" if left.why == "erasure" else "removed when their time had passed,"
    signed = {
        True: "the log's key has signed this",
        False: "NOT SIGNED by the log's key: somebody else wrote this",
        None: f"not checked, because {key}.pub cannot be read; give the log's key with --key",
    }
    return (
        f"the texts of {id_} were kept, and were {done} on {at} ({signed[_is_signed(left, key)]})"
    )


def _is_signed(left: Tombstone, key: Path) -> bool | None:
    """Return whether the log's key signed; None without its public key."""
    try:
        public = PublicKey.parse(key.with_name(f"{key.name}.pub").read_text(encoding="utf-8"))
    except (NoteError, OSError):
        return None
    return left.is_signed_by(public)


def _format_texts(collaboration: Collaboration) -> str:
    """Return what was said, a turn a paragraph."""
    turns: list[tuple[str, str]] = [
        (message.role, message.full_text) for message in collaboration.prompt.messages
    ]
    turns.append(("draft", collaboration.draft.full_text))
    for number, turn in enumerate(collaboration.rounds, start=1):
        feedback = turn.feedback
        turns.append((f"feedback {number}", feedback.text or feedback.reasoning or "(no words)"))
        if feedback.failure and feedback.reply is not None:
            turns.append((f"feedback {number}, as the model wrote it", feedback.reply.full_text))
        if turn.revision is not None:
            turns.append((f"revision {number}", turn.revision.full_text))
    return "\n".join(f"--- {who}\n{text}" for who, text in turns)


def print_counts(
    counts: Counter[tuple[str, ...]], by: Sequence[str], *, as_csv: bool, as_json: bool
) -> None:
    """Print how many decisions have each combination of values, the most frequent first."""
    rows = [
        {**dict(zip(by, values, strict=True)), "count": str(number)}
        for values, number in counts.most_common()
    ]
    if as_json:
        print_json([{**row, "count": int(row["count"])} for row in rows])
    elif as_csv:
        print_csv(rows, [*by, "count"])
    else:
        widths = [max(map(len, (name, *(row[name] for row in rows)))) for name in (*by, "count")]
        for cells in ([*by, "count"], *(list(row.values()) for row in rows)):
            print(make_visible("  ".join(map(str.ljust, cells, widths)).rstrip()))


def print_csv(rows: Iterable[dict[str, str]], columns: Sequence[str] = ROW) -> None:
    """Print a table, row by row."""
    writer = csv.DictWriter(sys.stdout, columns)
    writer.writeheader()
    writer.writerows(rows)


def print_entries(entries: Iterable[Entry]) -> None:
    """Print a JSON list, an entry a line, without holding all of them."""
    start = "["
    for entry in entries:
        print(f"{start}\n{json.dumps(msgspec.to_builtins(entry), separators=(',', ':'))}", end="")
        start = ","
    print("[]" if start == "[" else "\n]")


def print_lines(entries: Sequence[Entry], limit: int | None) -> None:
    """Print a line for each entry, and how to see older ones."""
    print("\n".join(map(one_line, entries)) or "no record matches")
    if limit is not None and len(entries) == limit:
        print(f"older records: --before {entries[0].seq}", file=sys.stderr)
