"""The synthetic data set: 20,020 prompts, both halves in the same disguises, split by family."""

from waltzrl.data.generator.generate import generate, write_dataset
from waltzrl.data.generator.record import GeneratedPrompt, read_dataset

__all__ = ["GeneratedPrompt", "generate", "read_dataset", "write_dataset"]
