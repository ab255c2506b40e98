"""Where prompts come from, and the gate that keeps test prompts out of training."""

from waltzrl.evaluation.data.duplicates import (
    Leak,
    duplicates,
    leaks,
    near_duplicates,
    require_disjoint,
)
from waltzrl.evaluation.data.importers import SETS, import_set
from waltzrl.evaluation.data.solutions import SolvedQuestion, questions_of, read_solutions
from waltzrl.foundation.jsonl import read_prompts, write_lines

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
