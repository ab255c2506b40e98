"""Milliseconds of processor time to scan a kilobyte for personal data: our scanner and presidio.

Also what `privacy.upstream` takes: to put stand-ins into a request, and to restore its echo.

    python benchmarks/privacy_scan.py [--kilobytes 64] [--rounds 5]

Seven kinds of text: prose, prose with ten pieces of personal data in 2 KB (letter), code, a log, a
table of numbers, text that is dense with personal data, and text made to be as slow as possible.
Each is read in pieces of 2 KB, like messages, and the least of the rounds is reported, which other
work on the machine slows down least. Presidio runs its patterns over a blank tokenizer, without a
model. The last line is JSON.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rules_vs_re import ordinary

from waltzrl.store.privacy.detection import Detector
from waltzrl.store.privacy.redaction import RedactionRules
from waltzrl.store.privacy.scanner import PersonalDataScanner
from waltzrl.store.privacy.stand_ins import StandIns

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.presidio_oracle import Presidio

PIECE = 2048
ROOT = Path(__file__).parents[1]
DENSE = (
    "Mail {name}@example.com or call (212) 555-01{two}, or +44 20 7946 09{two}. Card 4539 1488 0343"
    " 1111, IBAN DE89 3704 0044 0532 0130 00, SSN 536-90-4399, from 10.1.2.{two}. "
    "Name: Ada Lovelace, password: hunter{two}, BSN 111222333, order {number}.\n"
)
LOG = (
    "2026-11-05T10:{two}:12.{number}Z INFO gateway id={digest} status=200 bytes={number} "
    "took=12.{two}ms from 10.1.2.{two}\n"
)
LETTER = 240
"""Characters of a letter that are dense with personal data."""
HOSTILE = ("ab:", ":", "+9 9 9 9 9 9 9 9 9 ", "GB82 ")


def repeated(form: str, draw: random.Random) -> str:
    """Fill in the form until there is a piece of text."""
    text = ""
    while len(text) < PIECE:
        text += form.format(
            name=draw.choice(("ada", "grace", "alan")),
            two=draw.randrange(10, 100),
            number=draw.randrange(10**5, 10**7),
            digest=f"{draw.getrandbits(128):032x}",
        )
    return text[:PIECE]


def texts(pieces: int) -> dict[str, list[str]]:
    """Make up pieces of every sort."""
    draw = random.Random(0)
    code = "".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))
    table = "\n".join(" ".join(f"{draw.random() * 10**4:.2f}" for _ in range(8)) for _ in range(40))
    return {
        "prose": [ordinary(draw, PIECE) for _ in range(pieces)],
        "letter": [
            ordinary(draw, PIECE - LETTER) + repeated(DENSE, draw)[:LETTER] for _ in range(pieces)
        ],
        "code": [code[n * PIECE : (n + 1) * PIECE] for n in range(pieces)],
        "log": [repeated(LOG, draw) for _ in range(pieces)],
        "table": [table[:PIECE] for _ in range(pieces)],
        "dense": [repeated(DENSE, draw) for _ in range(pieces)],
        "hostile": [(HOSTILE[n % len(HOSTILE)] * PIECE)[:PIECE] for n in range(pieces)],
    }


def round_trip(detector: Detector, text: str) -> str:
    """Return a text after its personal data was replaced for an upstream, and restored."""
    stand_ins = StandIns(detector, numbered=True, written=text)
    return stand_ins.restore(stand_ins.conceal_all(text, stand_ins.conceal))


def milliseconds_per_kilobyte(
    read: Callable[[str], object], pieces: list[str], rounds: int
) -> float:
    """Return the least of the rounds, after one round to warm up."""
    seconds = []
    for _round in range(rounds + 1):
        began = time.process_time()
        for piece in pieces:
            read(piece)
        seconds.append(time.process_time() - began)
    return min(seconds[1:]) * 1000 / (len(pieces) * PIECE / 1024)


def main() -> None:
    """Print a table, and the numbers as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kilobytes", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    scanner: Detector = PersonalDataScanner()
    readers = {
        "scan": scanner.find,
        "scrub": RedactionRules({}, scanner).scrub,
        "round trip": partial(round_trip, scanner),
        "presidio": Presidio().find,
    }
    result = {}
    print("| text | scan | scan and redact | round trip | presidio |\n| --- |" + " ---: |" * 4)
    for sort, pieces in texts(arguments.kilobytes * 1024 // PIECE).items():
        result[sort] = {
            name: milliseconds_per_kilobyte(read, pieces, arguments.rounds)
            for name, read in readers.items()
        }
        print(f"| {sort} | " + " | ".join(f"{ms:.3f}" for ms in result[sort].values()) + " |")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
