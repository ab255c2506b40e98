"""What `waltzrl audit show` prints: lines, pages, counts, CSV and JSON."""

import csv
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec

from waltzrl.audit import Entry, contents_for, one_line, one_page
from waltzrl.audit.contents import content_files
from waltzrl.audit.query import COLUMNS
from waltzrl.audit.record import encode
from waltzrl.cli.options import print_json
from waltzrl.records import Collaboration

ROW = ("time", "seq", *COLUMNS)
"""Columns of a decision."""


def print_request(folder: Path, entries: Sequence[Entry], *, contents: bool, as_json: bool) -> None:
    """Print the decisions on one request, and where their texts are."""
    ids = dict.fromkeys(entry.decision.id for entry in entries if entry.decision is not None)
    kept = {id_: contents_for(folder, id_) for id_ in ids} if contents else {}
    if as_json:
        decisions = msgspec.to_builtins(entries)
        words = {id_: msgspec.to_builtins(texts) for id_, texts in kept.items()}
        print_json({"decisions": decisions, "contents": words} if contents else decisions)
        return
    for entry in entries:
        print(one_page(entry))
        record = entry.decision
        assert record is not None, "found by its id"
        exchange = quote(record.exchange_id or record.id, safe="")
        print(f"  {'memory':<24}/desk/collaborations/{exchange}, if the gateway has a memory")
        if content_files(folder) and not contents:
            print(f"  {'contents':<24}waltzrl audit show {folder} {record.id} --contents")
    for id_, texts in kept.items():
        if not texts:
            print(f"no texts of {id_} are kept: contents = true stores them, and they expire")
        for collaboration in texts:
            print(_text(collaboration))


def _text(collaboration: Collaboration) -> str:
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
            print("  ".join(map(str.ljust, cells, widths)).rstrip())


def print_csv(rows: Iterable[dict[str, str]], columns: Sequence[str] = ROW) -> None:
    """Print a table, row by row."""
    writer = csv.DictWriter(sys.stdout, columns)
    writer.writeheader()
    writer.writerows(rows)


def print_entries(entries: Iterable[Entry]) -> None:
    """Print a JSON list, an entry a line, without holding all of them."""
    start = "["
    for entry in entries:
        print(f"{start}\n{encode(entry).decode()}", end="")
        start = ","
    print("[]" if start == "[" else "\n]")


def print_lines(entries: Sequence[Entry], limit: int | None) -> None:
    """Print a line for each entry, and how to see older ones."""
    print("\n".join(map(one_line, entries)) or "no record matches")
    if limit is not None and len(entries) == limit:
        print(f"older records: --before {entries[0].seq}", file=sys.stderr)
