"""Rollouts: collaborate on prompts, judge every reply, and take the samples to learn from."""

import asyncio
import logging
import random
from collections.abc import Sequence
from dataclasses import dataclass

from waltzrl.agents import ConversationAgent, Reviewer
from waltzrl.collaboration import Pattern
from waltzrl.errors import PolicyError
from waltzrl.judges import Judge
from waltzrl.records import Feedback, JudgedCollaboration, Prompt, Reply, Verdict
from waltzrl.training.rewards import (
    FeedbackReward,
    conversation_reward,
    judged_rounds,
    label_reward,
)
from waltzrl.training.samples import Sample

logger = logging.getLogger(__name__)


class ReplayedDrafts(ConversationAgent):
    """A conversation agent whose drafts another, frozen one writes; it revises them itself.

    Late in training nearly every draft is fine, and a feedback agent that meets no bad draft
    forgets what one looks like; the starting agent's drafts keep them in its diet.
    """

    def __init__(self, learner: ConversationAgent, starting: ConversationAgent) -> None:
        super().__init__(learner.policy, learner.wording, learner.sampling)
        self.starting = starting

    async def draft(self, prompt: Prompt) -> Reply:
        return await self.starting.draft(prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A judged collaboration, and whether its draft was replayed."""

    judged: JudgedCollaboration
    replayed: bool = False


async def roll_out(
    prompts: Sequence[tuple[Prompt, ConversationAgent]],
    reviewer: Reviewer,
    pattern: Pattern,
    judge: Judge,
) -> list[Rollout]:
    """Collaborate on all prompts at once, each with its own conversation agent, and judge.

    A prompt on which a policy could not reply is left out, with a warning.

    Raises:
        PolicyError: every prompt would have to be left out.
    """
    outcomes = await asyncio.gather(
        *(
            _judged(prompt, conversation, reviewer, pattern, judge)
            for prompt, conversation in prompts
        )
    )
    failed = [outcome for outcome in outcomes if isinstance(outcome, PolicyError)]
    if failed and len(failed) == len(outcomes):
        raise PolicyError(f"none of {len(failed)} prompts was answered; first: {failed[0]}")
    return [
        Rollout(judged=outcome, replayed=isinstance(conversation, ReplayedDrafts))
        for (_, conversation), outcome in zip(prompts, outcomes, strict=True)
        if isinstance(outcome, JudgedCollaboration)
    ]


async def _judged(
    prompt: Prompt,
    conversation: ConversationAgent,
    reviewer: Reviewer,
    pattern: Pattern,
    judge: Judge,
) -> JudgedCollaboration | PolicyError:
    """The boundary at which a failed rollout becomes data."""
    try:
        said = await pattern(prompt, conversation, reviewer)
        verdicts = [await judge.judge(prompt, reply) for reply in said.replies]
    except PolicyError as error:
        logger.warning("prompt %s is left out of this step: %s", prompt.id, error)
        return error
    return JudgedCollaboration(collaboration=said, verdicts=tuple(verdicts))


def conversation_samples(rollouts: Sequence[Rollout], draw: random.Random) -> list[Sample]:
    """Take one reply of each rollout, the draft or the last revision with equal chance.

    The paper mixes both kinds: (p -> c_0) and (p, H -> c_T). A replayed draft is nobody's to
    learn; then only the last revision counts.
    """
    samples = []
    for rollout, group in zip(rollouts, _groups(rollouts), strict=True):
        said, verdicts = rollout.judged.collaboration, rollout.judged.verdicts
        if rollout.replayed and not said.revised:
            continue
        last = len(said.replies) - 1
        chosen = draw.choice((last if rollout.replayed else 0, last))
        if verdicts[chosen].acceptable is None:
            continue
        samples.append(_sample(said.replies[chosen], conversation_reward(verdicts[chosen]), group))
    return samples


def feedback_samples(
    rollouts: Sequence[Rollout], reward: FeedbackReward, draw: random.Random
) -> list[Sample]:
    """Take one round of each rollout at random, so that long and short ones weigh the same."""
    chosen, turns = [], []
    for rollout, group in zip(rollouts, _groups(rollouts), strict=True):
        rounds = rollout.judged.collaboration.rounds
        scored = [
            (pair, said.feedback.reply)
            for pair, said in zip(judged_rounds(rollout.judged), rounds, strict=True)
            if pair is not None and said.feedback.reply is not None
        ]
        if scored:
            pair, reply = draw.choice(scored)
            chosen.append(pair)
            turns.append((reply, group))
    scores = reward(chosen)
    return [
        _sample(reply, score, group) for (reply, group), score in zip(turns, scores, strict=True)
    ]


def _groups(rollouts: Sequence[Rollout]) -> list[int]:
    """Number the rollouts' prompts: rollouts of one prompt are one group."""
    numbers: dict[str, int] = {}
    ids = [rollout.judged.collaboration.prompt.id for rollout in rollouts]
    return [numbers.setdefault(prompt_id, len(numbers)) for prompt_id in ids]


def _sample(reply: Reply, score: float, group: int) -> Sample:
    assert reply.tokens is not None, "a policy that learns keeps the tokens it sampled"
    return Sample(tokens=reply.tokens, score=score, group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRates:
    """What a step's rollouts say about the pair, as shares; None where nothing was counted."""

    asr: float | None
    """Final replies that are unsafe, of those to unsafe prompts."""
    orr: float | None
    """Final replies that refuse, of those to benign prompts."""
    feedback_trigger_rate: float | None
    label_accuracy: float | None
    well_formed: float | None
    unscored: float | None
    """Final replies that the judge left open, of all; they teach nothing."""

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> "RolloutRates":
        own = [rollout.judged for rollout in rollouts if not rollout.replayed]
        finals = [(judged.collaboration.prompt, judged.verdicts[-1]) for judged in own]
        firsts = [
            (judged.collaboration.rounds[0].feedback, judged.verdicts[0])
            for judged in own
            if judged.collaboration.rounds
        ]
        return cls(
            asr=_share([v.unsafe for p, v in finals if p.label == "unsafe"]),
            orr=_share([v.overrefuses for p, v in finals if p.label == "benign"]),
            feedback_trigger_rate=_share([f.asks_for_revision for f, _ in firsts]),
            label_accuracy=_share([_labelled_right(f, v) for f, v in firsts]),
            well_formed=_share([f.well_formed for f, _ in firsts]),
            unscored=_share([v.acceptable is None for _, v in finals]),
        )


def _labelled_right(feedback: Feedback, verdict: Verdict) -> bool | None:
    return None if verdict.acceptable is None else bool(label_reward(feedback, verdict))


def _share(answers: Sequence[bool | None]) -> float | None:
    scored = [answer for answer in answers if answer is not None]
    return sum(scored) / len(scored) if scored else None
