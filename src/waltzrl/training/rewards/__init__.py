"""Rewards: verdicts in, numbers out; arithmetic that calls no model."""

from waltzrl.training.rewards.paper import (
    STAGE_1,
    STAGE_2,
    Coefficients,
    conversation_reward,
    feedback_reward,
    format_reward,
    improvement,
    label_reward,
    paper_rewards,
    unconditioned_rewards,
)
from waltzrl.training.rewards.rounds import FeedbackReward, JudgedRound, judged_rounds
from waltzrl.training.rewards.signed import class_weights, signed_rewards

__all__ = [
    "STAGE_1",
    "STAGE_2",
    "Coefficients",
    "FeedbackReward",
    "JudgedRound",
    "class_weights",
    "conversation_reward",
    "feedback_reward",
    "format_reward",
    "improvement",
    "judged_rounds",
    "label_reward",
    "paper_rewards",
    "signed_rewards",
    "unconditioned_rewards",
]
