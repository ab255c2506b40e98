"""Rewards: verdicts or probabilities in, numbers out; arithmetic that calls no model."""

from waltzrl.training.rewards.balance import ClassFrequencies
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
from waltzrl.training.rewards.signed import signed_rewards
from waltzrl.training.rewards.teacher import (
    ExplanationCoefficients,
    ScoredExplanation,
    explanation_reward,
)

REWARDS = {
    "paper": paper_rewards,
    "signed": signed_rewards,
    "unconditioned": unconditioned_rewards,
}
"""Rewards of the feedback agent, by their names in recipes."""

__all__ = [
    "REWARDS",
    "STAGE_1",
    "STAGE_2",
    "ClassFrequencies",
    "Coefficients",
    "ExplanationCoefficients",
    "FeedbackReward",
    "JudgedRound",
    "ScoredExplanation",
    "conversation_reward",
    "explanation_reward",
    "feedback_reward",
    "format_reward",
    "improvement",
    "judged_rounds",
    "label_reward",
    "paper_rewards",
    "signed_rewards",
    "unconditioned_rewards",
]
