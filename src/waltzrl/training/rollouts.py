"""Rollouts: collaborate on prompts, judge every reply, and take the samples to learn from."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from waltzrl.collaboration import Drafter
from waltzrl.errors import PolicyError, ScoringError
from waltzrl.evaluation.judges import Judge, judge_replies
from waltzrl.records import (
    Collaboration,
    Feedback,
    JudgedCollaboration,
    Prompt,
    Reply,
    Round,
    Verdict,
)
from waltzrl.training import ranks
from waltzrl.training.rewards import (
    ClassFrequencies,
    FeedbackReward,
    conversation_reward,
    improvement,
    judged_rounds,
    label_reward,
)
from waltzrl.training.samples import Sample

logger = logging.getLogger(__name__)

BoundPattern = Callable[[Prompt, Drafter], Awaitable[Collaboration]]
"""A pattern that knows its reviewer: `partial(collaborate, reviewer=..., max_rounds=1)`."""


Asked = Sequence[tuple[Prompt, Drafter]]
"""Prompts, each with who drafts."""
Outcome = JudgedCollaboration | PolicyError
"""The outcome of a prompt: a judged collaboration, or why a policy could not reply."""


class Spread(Protocol):
    """Decides which process rolls out which prompts of a step."""

    async def __call__(
        self, asked: Asked, judged: Callable[[Prompt, Drafter], Awaitable[Outcome]], seed: int
    ) -> list[Outcome]:
        """Return what came of the prompts of this rank's share, in order.

        All ranks' together are what came of every prompt. It runs while the ranks learn, so it
        must not wait for another rank.

        Args:
            asked: the same on every rank.
            judged: collaborates on one prompt in this process, and judges.
            seed: of the step; who samples here has it already.
        """
        ...


class ReplayedDrafts:
    """A drafter whose drafts a frozen agent writes, and whose revisions the one that learns.

    Late in training nearly every draft is fine, and a feedback agent that sees no bad draft forgets
    what one looks like; the initial agent's drafts keep some among its rollouts.
    """

    def __init__(self, learner: Drafter, initial: Drafter) -> None:
        self._learner, self._initial = learner, initial

    async def draft(self, prompt: Prompt) -> Reply:
        return await self._initial.draft(prompt)

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        return await self._learner.revise(prompt, draft, rounds)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """A judged collaboration, and whether its draft was replayed."""

    judged: JudgedCollaboration
    replayed: bool = False


Count = Callable[[Sequence[Rollout]], None]
"""A function that is given the rollouts of a step, to count what they cost."""


async def spread_over_ranks(
    asked: Asked, judged: Callable[[Prompt, Drafter], Awaitable[Outcome]], seed: int
) -> list[Outcome]:
    """Roll out a share of the prompts on every rank; see `Spread`."""
    return await asyncio.gather(*(judged(*prompt) for prompt in ranks.take_share(asked)))


async def run_on_first_rank(
    asked: Asked, judged: Callable[[Prompt, Drafter], Awaitable[Outcome]], seed: int
) -> list[Outcome]:
    """Roll out all prompts on the first rank, which alone asks servers; see `Spread`."""
    return await asyncio.gather(*(judged(*prompt) for prompt in asked if ranks.is_first()))


async def roll_out(
    prompts: Asked,
    pattern: BoundPattern,
    judge: Judge,
    least_scored_share: float,
    spread: Spread = spread_over_ranks,
) -> list[Rollout]:
    """Collaborate on all prompts at once, each with its own drafter, and judge.

    A prompt on which a policy could not reply is left out, with a warning. All ranks get the
    rollouts of all prompts: what follows is computed from the whole step.

    Args:
        prompts: each with who drafts.
        pattern: how to collaborate.
        judge: of every reply.
        least_scored_share: of the prompts whose replies must all be scored, above 0.
        spread: over processes, with the seed 0.

    Raises:
        ScoringError: fewer were.
    """
    own = await spread(prompts, partial(roll_out_and_judge, pattern=pattern, judge=judge), 0)
    return gather_rollouts(prompts, own, least_scored_share)


def gather_rollouts(
    prompts: Asked, own: Sequence[Outcome], least_scored_share: float
) -> list[Rollout]:
    """Return the rollouts of all ranks, on each; see `roll_out`.

    Args:
        prompts: of the step.
        own: what came of this rank's share; see `Spread`.
        least_scored_share: see `roll_out`.

    Raises:
        ScoringError: fewer were scored.
    """
    outcomes = ranks.gather_items(own)
    _require_scored(outcomes, least_scored_share)
    return [
        Rollout(judged=outcome, replayed=isinstance(drafter, ReplayedDrafts))
        for (_, drafter), outcome in zip(prompts, outcomes, strict=True)
        if isinstance(outcome, JudgedCollaboration)
    ]


def _require_scored(outcomes: Sequence[Outcome], least_share: float) -> None:
    failed = [outcome for outcome in outcomes if isinstance(outcome, PolicyError)]
    scored = sum(
        isinstance(outcome, JudgedCollaboration)
        and all(verdict.acceptable is not None for verdict in outcome.verdicts)
        for outcome in outcomes
    )
    if scored < least_share * len(outcomes):
        reason = (
            f"{len(failed)} failed, first: {failed[0]}" if failed else _describe_undecided(outcomes)
        )
        raise ScoringError(
            f"{scored} of {len(outcomes)} collaborations were scored, need {least_share:.0%} "
            f"(checkpointing.least_scored_share; {reason}); nothing was learnt from them: see "
            "that the judge and the models answer, and run train again to resume"
        )


def _describe_undecided(outcomes: Sequence[Outcome]) -> str:
    """Say what the judge answered where it decided nothing."""
    answers = [
        answer.text
        for outcome in outcomes
        if isinstance(outcome, JudgedCollaboration)
        for verdict in outcome.verdicts
        if verdict.acceptable is None
        for answer in verdict.answers
    ]
    return f"the judge's model answered {answers[0][:60]!r}" if answers else "none failed"


async def roll_out_and_judge(
    prompt: Prompt, drafter: Drafter, *, pattern: BoundPattern, judge: Judge
) -> Outcome:
    """Collaborate on a prompt and judge: the boundary at which a failed rollout becomes data."""
    try:
        collaboration = await pattern(prompt, drafter)
        verdicts = await judge_replies(collaboration, judge)
    except PolicyError as error:
        logger.warning("prompt %s is left out of this step: %s", prompt.id, error)
        return error
    return JudgedCollaboration(collaboration=collaboration, verdicts=verdicts)


TakeSamples = Callable[[Sequence[Rollout], random.Random], list[Sample]]
"""A function that takes what one role learns from a step's rollouts; each role has its own."""


def conversation_samples(rollouts: Sequence[Rollout], draw: random.Random) -> list[Sample]:
    """Take one reply of each rollout, the draft or the last revision with equal chance.

    The paper mixes both kinds: (p -> c_0) and (p, H -> c_T). The agent did not write a replayed
    draft; then only the last revision counts.
    """
    samples = []
    for rollout, group in zip(rollouts, _number_groups(rollouts), strict=True):
        collaboration, verdicts = rollout.judged.collaboration, rollout.judged.verdicts
        if rollout.replayed and not collaboration.revised:
            continue
        last = len(collaboration.replies) - 1
        chosen = draw.choice((last if rollout.replayed else 0, last))
        if verdicts[chosen].acceptable is None:
            continue
        score = conversation_reward(verdicts[chosen])
        samples.append(_make_sample(collaboration.replies[chosen], score, group))
    return samples


def feedback_samples(
    rollouts: Sequence[Rollout],
    draw: random.Random,
    *,
    reward: FeedbackReward,
    frequencies: ClassFrequencies,
) -> list[Sample]:
    """Take one round of each rollout at random, so that long and short ones weigh the same.

    Args:
        rollouts: of one step.
        draw: random numbers.
        reward: of the chosen rounds.
        frequencies: weigh them by the classes of the replies that they review.
    """
    chosen, turns = [], []
    for rollout, group in zip(rollouts, _number_groups(rollouts), strict=True):
        rounds = rollout.judged.collaboration.rounds
        scored = [
            (judged, turn.feedback.reply)
            for judged, turn in zip(judged_rounds(rollout.judged), rounds, strict=True)
            if judged is not None and turn.feedback.reply is not None
        ]
        if scored:
            judged, reply = draw.choice(scored)
            chosen.append(judged)
            turns.append((reply, group))
    scores = reward(frequencies.balanced(chosen))
    return [
        _make_sample(reply, score, group)
        for (reply, group), score in zip(turns, scores, strict=True)
    ]


def _number_groups(rollouts: Sequence[Rollout]) -> list[int]:
    """Number the rollouts' prompts: rollouts of one prompt are one group.

    Prompts are compared whole: two sets may have the same ids.
    """
    numbers: dict[Prompt, int] = {}
    prompts = [rollout.judged.collaboration.prompt for rollout in rollouts]
    return [numbers.setdefault(prompt, len(numbers)) for prompt in prompts]


def _make_sample(reply: Reply, score: float, group: int) -> Sample:
    assert reply.tokens is not None, "a policy that learns keeps the tokens it sampled"
    return Sample(tokens=reply.tokens, score=score, group=group)


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRates:
    """How well the agents did in a step's rollouts; None where nothing was counted.

    Rollouts with a replayed draft do not count: the agents did not write all of them.
    """

    asr: float | None
    """Final replies that are unsafe, of those to unsafe prompts."""
    orr: float | None
    """Final replies that refuse, of those to benign prompts."""
    non_answer: float | None
    """Final replies that neither refuse nor answer, of those to benign prompts; None also where
    the judge does not look for them."""
    draft_asr: float | None
    draft_orr: float | None
    draft_non_answer: float | None
    improvement: float | None
    """R_DIR: mean gain by a round of feedback, 0 for a round without a revision."""
    feedback_trigger_rate: float | None
    label_accuracy: float | None
    well_formed: float | None
    unscored: float | None
    """Final replies that the judge could not score, of all; nothing is learnt from them."""

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> "RolloutRates":
        own = [rollout.judged for rollout in rollouts if not rollout.replayed]
        drafts = [(judged.collaboration.prompt, judged.verdicts[0]) for judged in own]
        finals = [(judged.collaboration.prompt, judged.verdicts[-1]) for judged in own]
        firsts = [
            (judged.collaboration.rounds[0].feedback, judged.verdicts[0])
            for judged in own
            if judged.collaboration.rounds
        ]
        rounds = [turn for judged in own for turn in judged_rounds(judged) if turn is not None]
        return cls(
            asr=_measure_unsafe(finals),
            orr=_measure_overrefused(finals),
            non_answer=_measure_unanswered(finals),
            draft_asr=_measure_unsafe(drafts),
            draft_orr=_measure_overrefused(drafts),
            draft_non_answer=_measure_unanswered(drafts),
            improvement=_average_known([improvement(turn.before, turn.after) for turn in rounds]),
            feedback_trigger_rate=_average_known([f.asks_for_revision for f, _ in firsts]),
            label_accuracy=_average_known([_labels_agree(f, v) for f, v in firsts]),
            well_formed=_average_known([f.well_formed for f, _ in firsts]),
            unscored=_average_known([v.acceptable is None for _, v in finals]),
        )

    def metrics(self) -> dict[str, float]:
        """Return the rates that were counted, under their names in the journal."""
        rates = {
            "rate/asr": self.asr,
            "rate/orr": self.orr,
            "rate/non_answer": self.non_answer,
            "rate/draft_asr": self.draft_asr,
            "rate/draft_orr": self.draft_orr,
            "rate/draft_non_answer": self.draft_non_answer,
            "reward/improvement_mean": self.improvement,
            "rate/feedback_trigger": self.feedback_trigger_rate,
            "rate/label_accuracy": self.label_accuracy,
            "rate/well_formed": self.well_formed,
            "rate/unscored": self.unscored,
        }
        return {name: rate for name, rate in rates.items() if rate is not None}


def length_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return how long the replies of each role are, and which share of them was cut off.

    Replayed drafts are left out, and so is a role without replies.
    """
    turns: dict[str, list[Reply]] = {"conversation": [], "feedback": []}
    for rollout in rollouts:
        collaboration = rollout.judged.collaboration
        turns["conversation"] += collaboration.replies[int(rollout.replayed) :]
        turns["feedback"] += [
            turn.feedback.reply for turn in collaboration.rounds if turn.feedback.reply is not None
        ]
    metrics = {}
    for role, replies in turns.items():
        lengths = [reply.usage.output_tokens for reply in replies if reply.usage is not None]
        if lengths:
            metrics[f"length/{role}_tokens"] = sum(lengths) / len(lengths)
            cut_off = sum(reply.finish == "length" for reply in replies)
            metrics[f"length/{role}_truncated_share"] = cut_off / len(replies)
    return metrics


Judged = Sequence[tuple[Prompt, Verdict]]


def _measure_unsafe(replies: Judged) -> float | None:
    return _average_known(
        [verdict.unsafe for prompt, verdict in replies if prompt.has_harmful_part]
    )


def _measure_overrefused(replies: Judged) -> float | None:
    return _average_known(
        [verdict.overrefuses for prompt, verdict in replies if prompt.has_harmless_part]
    )


def _measure_unanswered(replies: Judged) -> float | None:
    return _average_known(
        [verdict.non_answer for prompt, verdict in replies if prompt.has_harmless_part]
    )


def _labels_agree(feedback: Feedback, verdict: Verdict) -> bool | None:
    return None if verdict.acceptable is None else bool(label_reward(feedback, verdict))


def _average_known(values: Sequence[float | None]) -> float | None:
    counted = [value for value in values if value is not None]
    return sum(counted) / len(counted) if counted else None
