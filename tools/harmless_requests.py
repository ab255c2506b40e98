"""Write harmless requests in dangerous-sounding words, from frames and words of ten trades.

    python tools/harmless_requests.py > runs/harmless.jsonl

Each line has prompt, label ("benign") and category (its family). With harmful prompts beside them
they tell the precision of each rule (`waltzrl rules lint --data`). No family is one of the held-out
families of `tests/agents/harmless_questions.jsonl`.
"""

import json
import random
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

FAMILIES = Path(__file__).with_suffix(".toml")
MOST = 350
"""Requests per family, drawn with a fixed seed."""
SLOT = re.compile(r"\{(\w+)\}")


def main() -> None:
    for family, text in requests():
        sys.stdout.write(json.dumps({"prompt": text, "label": "benign", "category": family}) + "\n")


def requests() -> Iterator[tuple[str, str]]:
    """Yield family and text; always the same ones."""
    for family, parts in tomllib.loads(FAMILIES.read_text("utf-8")).items():
        frames: list[str] = parts.pop("frames")
        texts = {text for frame in frames for text in _filled(frame, parts)}
        drawn = random.Random(family).sample(sorted(texts), min(MOST, len(texts)))
        yield from ((family, text) for text in drawn)


def _filled(frame: str, words: dict[str, list[str]]) -> Iterator[str]:
    """Yield the frame with every choice of a word for each slot."""
    slot = SLOT.search(frame)
    if slot is None:
        yield frame[0].upper() + frame[1:]
        return
    for word in words[slot[1]]:
        yield from _filled(frame[: slot.start()] + word + frame[slot.end() :], words)


if __name__ == "__main__":
    main()
