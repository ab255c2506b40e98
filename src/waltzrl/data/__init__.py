"""Where prompts come from, and the gate that keeps test prompts out of training."""

from waltzrl.data.duplicates import Leak, duplicates, leaks, near_duplicates, require_disjoint
from waltzrl.data.importers import SETS, import_set
from waltzrl.data.jsonl import read_prompts, write_lines
from waltzrl.data.solutions import SolvedQuestion, questions_of, read_solutions

__all__ = [
    "SETS",
    "Leak",
    "SolvedQuestion",
    "duplicates",
    "import_set",
    "leaks",
    "near_duplicates",
    "questions_of",
    "read_prompts",
    "read_solutions",
    "require_disjoint",
    "write_lines",
]
