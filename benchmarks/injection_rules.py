"""What the rules of the MCP proxy find in results of tools: `python benchmarks/injection_rules.py`.

Our own results of `tests/support`, and texts of this machine: the READMEs of installed packages and
the modules of Python's standard library, which hold no instruction that is aimed at a model.
"""

import asyncio
import sys
import sysconfig
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from mcp.types import TextContent

from waltzrl import GuardSettings, open_guard
from waltzrl.evaluation.intervals import share
from waltzrl_mcp.screen import PACKS, reasons_against

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.tool_results import harmless_results, injected_results

GUARD = open_guard(settings=GuardSettings(rules=PACKS))


async def flags(text: str) -> bool:
    return bool(await reasons_against([GUARD], TextContent(type="text", text=text)))


def show(name: str, texts: Sequence[str]) -> None:
    flagged = sum(asyncio.run(flags(text)) for text in texts)
    part = share(flagged, len(texts))
    print(f"| {name} | {flagged} of {len(texts)} | {part.low:.1%} to {part.high:.1%} |")


development, held_out = injected_results()
harmless = harmless_results()
library = Path(sysconfig.get_paths()["stdlib"])
print("| results | flagged | 95 % interval |\n| --- | ---: | ---: |")
show("injected, development", development)
show("injected, held out", held_out)
show("harmless, development", harmless[0])
show("harmless, held out", harmless[1])
show("READMEs of installed packages", [d.read_text("METADATA") or "" for d in distributions()])
show("standard library", [p.read_text("utf-8", "replace") for p in sorted(library.glob("*.py"))])
