"""Where a training run finds its prompts and demonstrations."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

MEMORY = "memory:"
"""Begins the name of a set of prompts that a memory holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Where prompts and demonstrations come from: see `read_sets`."""

    prompts: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    """Sets that no training prompt may touch; the run does not start when one does."""
    demonstrations: tuple[str, ...] = ()
    """Examples to imitate; only stages of kind `imitation` need them."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Take so many prompts, and demonstrations, at most; to try a recipe out."""
