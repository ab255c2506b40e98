"""The synthetic data set: 20,020 prompts, both halves in the same disguises, split by family."""
