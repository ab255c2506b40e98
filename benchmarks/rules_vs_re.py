"""Stage 1 on 2 KB of text, against a loop of Python's `re` over the same rules; and hostile texts.

    python benchmarks/rules_vs_re.py [--texts 200] [--rounds 5]

Both sides look for the same patterns in the same texts, one request and one reply at a time. The
first half of the texts warms both up; the other half, never seen before, is measured. Then texts
of one megabyte that are made to be slow are read, and compared with ordinary text of that size.
The last line is JSON.
"""

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Sequence

from waltzrl.agents.rules import Rule, load_rulebook

SIZE = 2048
MEGABYTE = 1 << 20
OPENINGS = (
    "On Monday", "In most towns", "After the meeting", "When the weather is fine",
    "According to the guide", "For a short holiday", "With a little practice", "Every spring",
    "If the website is slow", "In the second chapter",
)  # fmt: skip
SUBJECTS = (
    "the teacher", "a small bakery", "our team", "the new library", "her neighbour", "the program",
    "a group of students", "the local council", "the doctor", "an experienced gardener",
    "the children", "a network of volunteers",
)  # fmt: skip
ACTIONS = (
    "explains how to plan", "writes a letter about", "builds a model of", "asks for information on",
    "gives three tips for", "compares the price of", "keeps a record of", "wants to improve",
    "shares pictures of", "uses a simple tool for", "can make", "will never forget",
)  # fmt: skip
OBJECTS = (
    "the garden behind the school", "a healthy breakfast", "the history of the railway",
    "safe passwords and backups", "the data from last year", "a quiet weekend", "public transport",
    "a good night's sleep", "the annual report", "solar panels on the roof",
    "the difference between two drugs for a cold", "a play about a king",
)  # fmt: skip


def ordinary(random_source: random.Random, size: int) -> str:
    """Make up `size` characters of text in which nothing is wrong."""
    parts = []
    length = 0
    while length < size:
        words = (random_source.choice(part) for part in (OPENINGS, SUBJECTS, ACTIONS, OBJECTS))
        number = random_source.randrange(1000)
        parts.append("{}, {} {} {}, {number} times. ".format(*words, number=number))
        length += len(parts[-1])
    return "".join(parts)[:size]


def hostile() -> dict[str, str]:
    """Texts of a megabyte of UTF-8 that are slow for many a scanner."""
    bite = {
        "nested brackets": "[" * 512 + "]" * 512,
        "one letter": "a",
        "backtracking bait": "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
        "how to how to": "how to ",
        "kill the kill the": "kill the ",
        "base64": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0",
        "many short base64": "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo0 ",
        "hexadecimal": "deadbeef",
        "strings": "\"a\" + 'b' ",
        "open strings": " 'a",
        "numbered parts": "join (1) a ",
        "sums of names": "a = 'b'; a + a ",
        "spaced letters": "a b c d e f g h ",
        "leetspeak": "h4ck3r5 ",
        "zalgo": "z\u0300\u0301\u0327\u0336a\u0315\u031bl\u0334g\u0358o\u0489",
        "zero width": "a\u200bb\u200c",
        "cyrillic": "\u043f\u0440\u0438\u0432\u0435\u0442 ",
        "spaces": " ",
        "percent escapes": "%6d%61",
        "percent here and there": "a%6d ",
        "entities": "&#109;a&amp;b",
        "tags": "a<b>m</b>",
        "open tags": "<b",
        "emphasis": "a**b*",
        "snake case": "a_bc_def_",
        "one word a line": "make\n",
        "hyphens": "ma-\n",
    }
    return {name: (text * (MEGABYTE // len(text.encode()) + 1)) for name, text in bite.items()}


def seconds(read: Callable[[str], object], text: str) -> float:
    """Time one call."""
    start = time.perf_counter()
    read(text)
    return time.perf_counter() - start


def loop(rules: Sequence[Rule]) -> tuple[int, Callable[[str], object]]:
    """Compile the rules for `re`; the reader returns the matches of each that hits."""
    compiled = [re.compile(p.regex, re.ASCII | re.IGNORECASE) for r in rules for p in r.patterns]
    return len(compiled), lambda text: [p.search(text) for p in compiled]


def compare(side: str, texts: Sequence[str], rounds: int) -> dict[str, float]:
    """Measure one side of the rulebook against the loop, alternating."""
    book = load_rulebook()
    count, with_re = loop([rule for rule in book.rules if rule.side == side])
    ours_read = book.request if side == "request" else book.reply
    seen, unseen = texts[: len(texts) // 2], texts[len(texts) // 2 :]
    for text in seen:
        ours_read(text)
    with_re(seen[0])
    first = [seconds(ours_read, text) for text in unseen]
    ours, theirs = list(first), []
    for _round in range(rounds):
        ours += [seconds(ours_read, text) for text in unseen]
        theirs += [seconds(with_re, text) for text in unseen[:4]]
    return {
        "patterns": count,
        "first_sight_p50_us": statistics.median(first) * 1e6,
        "p50_us": statistics.median(ours) * 1e6,
        "p99_us": statistics.quantiles(ours, n=100)[98] * 1e6,
        "re_p50_us": statistics.median(theirs) * 1e6,
        "ratio": statistics.median(theirs) / statistics.median(ours),
    }


def main() -> None:
    """Print every number of one run."""
    options = argparse.ArgumentParser()
    options.add_argument("--texts", type=int, default=200)
    options.add_argument("--rounds", type=int, default=5)
    chosen = options.parse_args()
    source = random.Random(0)
    texts = [ordinary(source, SIZE) for _text in range(chosen.texts)]
    start = time.perf_counter()
    book = load_rulebook()
    result: dict[str, object] = {"load_ms": (time.perf_counter() - start) * 1e3}
    for side in ("request", "reply"):
        result[side] = compare(side, texts, chosen.rounds)
        print(side, {name: round(value, 1) for name, value in result[side].items()})
    benign = ordinary(source, MEGABYTE)
    usual = min(seconds(book.request, benign) for _round in range(chosen.rounds))
    print(f"ordinary text: {usual * 1e3:.1f} ms a megabyte")
    slow = {}
    for name, text in hostile().items():
        slow[name] = min(seconds(book.request, text) for _round in range(chosen.rounds)) / usual
        print(f"{name}: {slow[name]:.2f} of ordinary")
    result["ordinary_ms_per_megabyte"] = usual * 1e3
    result["hostile_over_ordinary"] = slow
    print(json.dumps(result))


if __name__ == "__main__":
    main()
