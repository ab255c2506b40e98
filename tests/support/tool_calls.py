"""Tool calls, destructive ones and harmless ones of the same tools; ours, and never run."""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PARTS = ("development", "held_out", "second", "third")
"""The calls that the rules were written with, those held out while they were, and two sets that
were written after the misses of the one before had been looked at."""


@dataclass(frozen=True, slots=True)
class LabelledCall:
    """A call, and whether it is destructive."""

    kind: str
    harmful: bool
    name: str
    arguments: str


@cache
def tool_calls(part):
    """Return the calls of a part, of which half are harmful."""
    path = Path(__file__).parent / f"tool_calls_{part}.jsonl"
    return [LabelledCall(**json.loads(line)) for line in path.read_text("utf-8").splitlines()]
