"""The prompts and demonstrations of a training run."""

from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

MEMORY = "memory:"
"""Prefix of the name of a set of prompts in a memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    """Sources of prompts and demonstrations; `read_sets` explains their names."""

    prompts: tuple[str, ...]
    held_out: tuple[str, ...] = ()
    """Test sets; the run does not start if a training prompt is in one of them."""
    demonstrations: tuple[str, ...] = ()
    """Examples to imitate, for stages of kind `imitation`."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Most prompts, and most demonstrations, to use; to try out a recipe."""
