"""What was served, as trajectories, statistics and prompts to learn from."""

from waltzrl.collector.export import export, require_format
from waltzrl.collector.selection import (
    REMEMBERED,
    PromptRow,
    Selection,
    collaboration_of,
    prompt_rows,
    prompts_of,
)
from waltzrl.collector.trajectories import Statistics, collect, statistics, trajectories

__all__ = [
    "REMEMBERED",
    "PromptRow",
    "Selection",
    "Statistics",
    "collaboration_of",
    "collect",
    "export",
    "prompt_rows",
    "prompts_of",
    "require_format",
    "statistics",
    "trajectories",
]
