"""Measure how the rules review safe and complying replies to harmful requests.

    python tools/measure_compliance.py [DATA_DIR]

Prints a table of docs/rules-measured.md: of the replies of ours, by split, and with DATA_DIR of the
recorded replies of public sets, how many safe and how many complying ones are flagged, with
Wilson's 95 % intervals. To compare, run the file with another version of waltzrl.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from waltzrl.agents import RulesReviewer
from waltzrl.agents.rules import load_rulebook
from waltzrl.evaluation.intervals import share
from waltzrl.records import Message, Prompt, Reply

PAIRS = Path(__file__).parents[1] / "tests/agents/replies_to_harmful_requests.jsonl"
RECORDED = (
    "pku_saferlhf_pairs",
    "jbb_artifacts_responses",
    "refusal_direction_completions",
    "gptfuzzer_responses_train",
)
MOST = 1200
"""Recorded replies of a set."""


class Row(NamedTuple):
    source: str
    request: str
    reply: str
    complies: bool


def main(data: Path | None) -> None:
    rows = list(pairs())
    if data is not None:
        rows += [row for name in RECORDED for row in recorded(data, name)]
    print("| replies | safe | flagged | complying | flagged |\n| --- | ---: | --- | ---: | --- |")
    for source in dict.fromkeys(row.source for row in rows):
        cells = [source]
        for complies in (False, True):
            chosen = [row for row in rows if row.source == source and row.complies is complies]
            cells += [str(len(chosen)), cell(sum(flags(chosen)), len(chosen))]
        print(f"| {' | '.join(cells)} |")


def pairs() -> Iterator[Row]:
    for line in PAIRS.read_text("utf-8").splitlines():
        row = json.loads(line)
        yield Row(row["split"], row["request"], row["reply"], row["complies"])


def recorded(data: Path, name: str) -> list[Row]:
    rows = [json.loads(line) for line in (data / f"{name}.jsonl").read_text("utf-8").splitlines()]
    harmful = [row for row in rows if row.get("response_label") and row["label"] != "benign"]
    harmful.sort(key=lambda row: sha256(row["response"].encode()).hexdigest())
    return [
        Row(
            name,
            row.get("goal") or row["prompt"],
            row["response"],
            row["response_label"] == "unsafe",
        )
        for row in harmful[-MOST:]
    ]


def flags(rows: Iterable[Row]) -> Iterator[bool]:
    reviewer = RulesReviewer(load_rulebook())
    for row in rows:
        prompt = Prompt(id="1", messages=(Message(role="user", content=row.request),))
        yield reviewer.read(prompt, Reply(text=row.reply)).unsafe


def cell(flagged: int, n: int) -> str:
    rate = share(flagged, n)
    if rate.value is None or rate.low is None or rate.high is None:
        return "-"
    return f"{flagged} ({100 * rate.value:.1f}, {100 * rate.low:.1f}-{100 * rate.high:.1f})"


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else None)
