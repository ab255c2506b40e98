"""What was served, as trajectories, statistics and prompts to learn from."""

from waltzrl.evaluation.collecting.demonstrations import DemonstrationRow, demonstrations
from waltzrl.evaluation.collecting.export import export, require_format
from waltzrl.evaluation.collecting.selection import (
    REMEMBERED,
    LabelledPrompt,
    PromptRow,
    Selection,
    collaboration_of,
    labelled_prompts,
    prompts_of,
)
from waltzrl.evaluation.collecting.trajectories import Statistics, collect, statistics, trajectories

__all__ = [
    "REMEMBERED",
    "DemonstrationRow",
    "LabelledPrompt",
    "PromptRow",
    "Selection",
    "Statistics",
    "collaboration_of",
    "collect",
    "demonstrations",
    "export",
    "labelled_prompts",
    "prompts_of",
    "require_format",
    "statistics",
    "trajectories",
]
