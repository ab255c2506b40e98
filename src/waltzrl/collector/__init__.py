"""What was served, as trajectories, statistics and prompts to learn from."""

from waltzrl.collector.export import export, require_format
from waltzrl.collector.prompts import REMEMBERED, PromptRow, prompt_rows, prompts_of
from waltzrl.collector.selection import Selection, said_in
from waltzrl.collector.trajectories import Statistics, collect, statistics, trajectories

__all__ = [
    "REMEMBERED",
    "PromptRow",
    "Selection",
    "Statistics",
    "collect",
    "export",
    "prompt_rows",
    "prompts_of",
    "require_format",
    "said_in",
    "statistics",
    "trajectories",
]
