"""What a run must reach: its warm-up a loss, its reinforcement a gain of reward."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated

from pydantic import Field

WINDOW = 10
"""Steps whose mean stands for the start or the end of a stage; half of them in a shorter one."""

Metrics = Sequence[Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetSettings:
    """What a run must reach; one that does not ends with exit status 4, and exports nothing."""

    warm_up_loss: Annotated[float, Field(gt=0)] | None = None
    """The mean loss of the last 10 steps of the warm-up must be below it, in nats per token, before
    reinforcement begins."""
    reward_gain: Annotated[float, Field(ge=0)] | None = None
    """In the last stage, the mean reward of the last 10 steps must be above that of the first 10 by
    this share of its size; 0.2 is 20 %. It holds for each role that learns. The nearer the first
    mean is to 0, the less must be gained: from exactly 0, anything."""


def missed_loss(lines: Metrics, target: float) -> str:
    """Say by how much a warm-up misses its target; nothing if it is reached.

    Args:
        lines: the metrics of its steps.
        target: the loss to stay below.
    """
    name = "loss/conversation"  # the base learns under this name
    losses = [line[name] for line in lines if name in line]
    if not losses:
        return f"{name} was measured in no step, targets.warm_up_loss is {target:g}"
    loss = fmean(losses[-WINDOW:])
    if loss < target:
        return ""
    return f"the warm-up ended with a loss of {loss:.3g}, targets.warm_up_loss is {target:g}"


def missed_gain(lines: Metrics, roles: Sequence[str], target: float) -> str:
    """Say by how much a stage misses its gain of reward; nothing if every role reaches it.

    Args:
        lines: the metrics of its steps.
        roles: that learn.
        target: the gain, as a share of the size of the reward at the start.
    """
    for role in roles:
        name = f"reward/{role}_mean"
        rewards = [line[name] for line in lines if name in line]
        if not rewards:
            return f"{name} was measured in no step, targets.reward_gain is {target:g}"
        window = max(1, min(WINDOW, len(rewards) // 2))
        first, last = fmean(rewards[:window]), fmean(rewards[-window:])
        if last <= first or last - first < target * abs(first):
            return (
                f"{name} went from {first:.3g} to {last:.3g} in the means of {window} steps, "
                f"targets.reward_gain is {target:g}"
            )
    return ""
