"""Where prompts come from, and the gate that keeps test prompts out of training."""

from waltzrl.data.duplicates import Leak, duplicates, leaks, near_duplicates, require_disjoint
from waltzrl.data.importers import SETS, import_set
from waltzrl.data.jsonl import read_prompts, write_lines

__all__ = [
    "SETS",
    "Leak",
    "duplicates",
    "import_set",
    "leaks",
    "near_duplicates",
    "read_prompts",
    "require_disjoint",
    "write_lines",
]
