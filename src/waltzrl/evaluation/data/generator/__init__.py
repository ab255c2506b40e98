"""The synthetic data set: 20,020 prompts, both halves in the same disguises, split by family."""

from waltzrl.evaluation.data.generator.generate import (
    GeneratedPrompt,
    demonstrations,
    generate,
    read_dataset,
    write_dataset,
    write_splits,
)
from waltzrl.evaluation.data.generator.texts import Split

__all__ = [
    "GeneratedPrompt",
    "Split",
    "demonstrations",
    "generate",
    "read_dataset",
    "write_dataset",
    "write_splits",
]
