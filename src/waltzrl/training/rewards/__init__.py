"""Rewards: verdicts or probabilities in, numbers out; arithmetic that calls no model."""

import math
from collections.abc import Mapping, Sequence
from textwrap import shorten
from typing import cast

from waltzrl.errors import InputError
from waltzrl.foundation.plugins import find_plugin, import_function
from waltzrl.training.rewards.attacker import attacker_reward
from waltzrl.training.rewards.paper import (
    STAGE_1,
    STAGE_2,
    conversation_reward,
    feedback_reward,
    format_reward,
    improvement,
    label_reward,
    paper_rewards,
    unconditioned_rewards,
)
from waltzrl.training.rewards.rounds import (
    Coefficients,
    FeedbackReward,
    JudgedRound,
    charge_rounds,
    judged_rounds,
)
from waltzrl.training.rewards.signed import balance_classes, signed_rewards
from waltzrl.training.rewards.teacher import (
    ExplanationCoefficients,
    ScoredExplanation,
    explanation_reward,
)

REWARDS: Mapping[str, FeedbackReward] = {
    "paper": paper_rewards,
    "signed": signed_rewards,
    "unconditioned": unconditioned_rewards,
}
"""Rewards of the feedback agent, by their names in recipes."""


def find_reward(name: str) -> FeedbackReward:
    """Return the reward that a recipe names.

    Args:
        name: of one of `REWARDS`, of one that an installed package provides (an entry point of the
            group `waltzrl.rewards`), or `MODULE:FUNCTION`; modules in the current folder are found.

    Raises:
        InputError: there is none.

    Example:
        find_reward("my_rewards:gentle")    # gentle(rounds, coefficients) in my_rewards.py
    """
    if name in REWARDS:
        return REWARDS[name]
    if ":" in name:
        reward = import_function("reward", name)
    else:
        reward = find_plugin("waltzrl.rewards", name)
    if not callable(reward):
        raise InputError(
            f"got the reward {name!r}; need {', '.join(REWARDS)}, the name of one that an "
            "installed package provides, or MODULE:FUNCTION with a module that can be imported"
        )
    return cast("FeedbackReward", reward)


def reward_rounds(
    reward: FeedbackReward, rounds: Sequence[JudgedRound], coefficients: Coefficients
) -> list[float]:
    """Return the reward of every round, [N].

    Raises:
        InputError: the function returned something else than a finite number for each.
    """
    returned: object = reward(rounds, coefficients)
    try:
        scores = list(cast("Sequence[float]", returned))
        valid = len(scores) == len(rounds) and all(map(math.isfinite, scores))
    except (TypeError, ValueError, OverflowError):  # no list, or something in it is no number
        valid = False
    if not valid:
        name = getattr(reward, "__qualname__", type(reward).__qualname__)
        raise InputError(
            f"the reward {name} returned {shorten(str(returned), 80)}; "
            f"need one finite number for each of {len(rounds)} rounds"
        )
    return [float(score) for score in scores]


__all__ = [
    "REWARDS",
    "STAGE_1",
    "STAGE_2",
    "Coefficients",
    "ExplanationCoefficients",
    "FeedbackReward",
    "JudgedRound",
    "ScoredExplanation",
    "attacker_reward",
    "balance_classes",
    "charge_rounds",
    "conversation_reward",
    "explanation_reward",
    "feedback_reward",
    "find_reward",
    "format_reward",
    "improvement",
    "judged_rounds",
    "label_reward",
    "paper_rewards",
    "reward_rounds",
    "signed_rewards",
    "unconditioned_rewards",
]
