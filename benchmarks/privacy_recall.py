"""Recall of personal data that Faker made up for ten countries: our scanner and presidio.

    python benchmarks/privacy_recall.py

The texts are `tests/support/faker_corpus.jsonl`. A piece is found if all its letters and digits lie
in findings, of whatever kind. Presidio runs its patterns over a blank tokenizer, without a model,
so it cannot find names and addresses here. Prints Markdown.
"""

import json
import sys
from collections import Counter
from pathlib import Path

from waltzrl.privacy import DEFAULT_REGIONS, Detector
from waltzrl.privacy.scanner import PersonalDataScanner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.faker_corpus import CORPUS
from support.presidio_oracle import Presidio


def counts(detector: Detector) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]]]:
    """Return what was planted, and what was found of it, by kind and region."""
    planted: Counter[tuple[str, str]] = Counter()
    found: Counter[tuple[str, str]] = Counter()
    for line in map(json.loads, CORPUS.read_text().splitlines()):
        text, key = line["text"], (line["kind"], line["region"])
        covered = {n for f in detector.find(text) for n in range(f.start, f.end)}
        planted[key] += 1
        places = range(line["start"], line["end"])
        found[key] += all(n in covered or not text[n].isalnum() for n in places)
    return planted, found


def main() -> None:
    """Print shares by kind and region, and presidio's by kind."""
    planted, found = counts(PersonalDataScanner())
    _planted, by_presidio = counts(Presidio())
    print("| kind | planted |", " | ".join(DEFAULT_REGIONS), "| all | presidio |")
    print("| --- |" + " ---: |" * (len(DEFAULT_REGIONS) + 3))
    for kind in sorted({kind for kind, _region in planted}):
        keys = [(kind, region) for region in DEFAULT_REGIONS]
        total = sum(planted[key] for key in keys)
        cells = [f"{found[key] / planted[key]:.2f}" if planted[key] else "-" for key in keys]
        ours, theirs = (
            sum(counter[key] for key in keys) / total for counter in (found, by_presidio)
        )
        print(f"| `{kind}` | {total} |", " | ".join(cells), f"| {ours:.3f} | {theirs:.3f} |")


if __name__ == "__main__":
    main()
