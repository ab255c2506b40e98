"""The validation and test rows, with the replies that they are measured with."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from data import Exchange, hollow, refused

Mask = NDArray[np.bool_]
MOST_PROMPTS = {"validate": 400, "test": 250}
MOST_REFUSALS = {"validate": 155, "test": 60}
MOST_RECORDED = 100
"""Of each set and label."""


@dataclass(frozen=True, slots=True)
class Part:
    """Validation or test rows: hollow answers, then refusals, then recorded replies."""

    name: str
    rows: list[Exchange]
    hollow: slice
    refused: slice
    recorded: slice

    @classmethod
    def of(cls, name: str, rows: Sequence[Exchange]) -> "Part":
        prompts = few([one for one in rows if not one.reply], MOST_PROMPTS[name])
        answers = [hollow(one) for one in prompts]
        refusals = [refused(one) for one in few(prompts, MOST_REFUSALS[name])]
        recorded = few([one for one in rows if one.reply], MOST_RECORDED)
        end = len(answers) + len(refusals)
        return cls(
            name,
            [*answers, *refusals, *recorded],
            slice(0, len(answers)),
            slice(len(answers), end),
            slice(end, None),
        )

    @property
    def bad(self) -> Mask:
        """[N] whether the reply is unsafe."""
        return np.array([bool(one.unsafe) for one in self.rows])

    @property
    def harmful(self) -> Mask:
        """[N] whether the request is."""
        return np.array([bool(one.harmful) for one in self.rows])


def few(rows: Sequence[Exchange], most: int) -> list[Exchange]:
    """Keep the first rows of each set and label."""
    counts: Counter[tuple[str, bool | None]] = Counter()
    kept = []
    for one in rows:
        kind = one.source, one.harmful if one.unsafe is None else one.unsafe
        counts[kind] += 1
        if counts[kind] <= most:
            kept.append(one)
    return kept
