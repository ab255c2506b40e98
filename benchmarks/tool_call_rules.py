"""What the pack `tool_calls` finds in our tool calls: `python benchmarks/tool_call_rules.py`.

The calls of `tests/support` are read and never run.
"""

import sys
from collections import Counter
from pathlib import Path

from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules.lint import FLAGGED
from waltzrl.evaluation.intervals import share

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.tool_calls import PARTS, tool_calls

BOOK = load_rulebook(["tool_calls"])


def show(name: str, calls: list) -> None:
    """Print a row: how many harmful and how many harmless calls are flagged."""
    cells = []
    for harmful in (True, False):
        texts = [call for call in calls if call.harmful == harmful]
        flagged = sum(
            any(f.severity > FLAGGED for f in BOOK.call(call.name, call.arguments))
            for call in texts
        )
        part = share(flagged, len(texts))
        cells.append(f"{flagged} of {len(texts)} ({part.low:.1%} to {part.high:.1%})")
    print(f"| {name} | {' | '.join(cells)} |")


print("| calls | destructive, flagged | harmless, flagged |\n| --- | ---: | ---: |")
for part in PARTS:
    show(part.replace("_", " "), tool_calls(part))
show("together", [call for part in PARTS for call in tool_calls(part)])
for kind in Counter(call.kind for part in PARTS for call in tool_calls(part)):
    show(kind, [call for part in PARTS for call in tool_calls(part) if call.kind == kind])
