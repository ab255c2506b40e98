"""Recall of personal data, and findings in ordinary text: the numbers of docs/privacy.md.

    python benchmarks/privacy_recall.py planted          our own corpus, with false alarms
    python benchmarks/privacy_recall.py faker            what Faker made up, beside presidio
    python benchmarks/privacy_recall.py ordinary PATH... findings by kind in files of yours

`planted` are the texts of `tests/support/corpus.jsonl`; a piece counts if kind, start and end are
right. `faker` are those of `tests/support/faker_corpus.jsonl`; a piece is found if all its letters
and digits lie in findings, of whatever kind. Presidio runs its patterns over a blank tokenizer,
without a model, so it cannot find names and addresses here. Of JSON Lines `ordinary` reads every
text of a line, of other files their content. Prints Markdown.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from waltzrl.store.privacy.detection import DEFAULT_REGIONS, KINDS, Detector
from waltzrl.store.privacy.scanner import PersonalDataScanner

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support import planting
from support.faker_corpus import CORPUS


def print_planted() -> None:
    """Print what of our corpus is found, and what else, by kind."""
    scanner = PersonalDataScanner()
    planted, found, alarms = Counter[str](), Counter[str](), Counter[str]()
    for line in map(json.loads, planting.CORPUS.read_text().splitlines()):
        expected = {tuple(each) for each in line["planted"]}
        findings = {(f.kind, f.start, f.end) for f in scanner.find(line["text"])}
        planted.update(kind for kind, _start, _end in expected)
        found.update(kind for kind, _start, _end in expected & findings)
        alarms.update(kind for kind, _start, _end in findings - expected)
    print("| kind | planted | found | false alarms |\n| --- | ---: | ---: | ---: |")
    for kind in KINDS:
        if planted[kind]:
            print(f"| `{kind}` | {planted[kind]} | {found[kind]} | {alarms[kind]} |")


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


def precision(detector: Detector) -> list[str]:
    """Return, by region and in all, how many of the findings touch what was planted."""
    findings, right = Counter[str](), Counter[str]()
    for line in map(json.loads, CORPUS.read_text().splitlines()):
        for finding in detector.find(line["text"]):
            findings[line["region"]] += 1
            right[line["region"]] += finding.start < line["end"] and line["start"] < finding.end
    shares = [right[region] / findings[region] for region in DEFAULT_REGIONS]
    return [*(f"{share:.2f}" for share in shares), f"{right.total() / findings.total():.3f}"]


def print_faker() -> None:
    """Print shares by kind and region, presidio's by kind, and how many findings are right."""
    from support.presidio_oracle import Presidio

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
    shares, theirs_right = precision(PersonalDataScanner()), precision(Presidio())[-1]
    print(
        f"| findings that are right | {planted.total()} |",
        " | ".join(shares),
        f"| {theirs_right} |",
    )


def print_ordinary(paths: Sequence[str]) -> None:
    """Print the findings in files, by kind, and how much text they hold."""
    scanner = PersonalDataScanner()
    found, size = Counter[str](), 0
    for path in map(Path, paths):
        for text in texts_of(path):
            size += len(text.encode("utf-8", "replace"))
            found.update(finding.kind for finding in scanner.find(text))
    print(f"| kind | found in {size / 1e6:.1f} MB |\n| --- | ---: |")
    for kind, number in found.most_common():
        print(f"| `{kind}` | {number} |")


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a file."""
    content = path.read_text("utf-8", "replace")
    if path.suffix != ".jsonl":
        yield content
        return
    for line in content.rstrip("\n").split("\n"):
        yield from strings(json.loads(line))


def strings(value: object) -> Iterator[str]:
    """Yield every text in a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["planted"]:
            print_planted()
        case ["faker"]:
            print_faker()
        case ["ordinary", *paths] if paths:
            print_ordinary(paths)
        case _:
            sys.exit(__doc__)
