"""How good the agents are while they train: in a step's rollouts, and on prompts held out."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from waltzrl.agents.exports import ATTACKER
from waltzrl.foundation.journal import read_metrics
from waltzrl.records import JudgedCollaboration, Prompt, Reply, Verdict
from waltzrl.training.rewards import attacker_reward, improvement, judged_rounds, label_reward
from waltzrl.training.roles import Best
from waltzrl.training.rollouts import (
    Count,
    Rollout,
    RolloutPrompt,
    RolloutRequest,
    Sampler,
    gather_rollouts,
    sample_share,
)

F1 = "validation/f1"
"""The metric that the best checkpoint is chosen by."""


def rollout_rates(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return how well the agents did in rollouts, by the names in the journal.

    A rate of which nothing was counted is left out. Rollouts with a replayed draft do not count:
    the agents did not write all of them.
    """
    own = [rollout.judged for rollout in rollouts if not rollout.replayed]
    drafts = [(judged.collaboration.prompt, judged.verdicts[0]) for judged in own]
    finals = [(judged.collaboration.prompt, judged.verdicts[-1]) for judged in own]
    firsts = [
        (judged.collaboration.rounds[0].feedback, judged.verdicts[0])
        for judged in own
        if judged.collaboration.rounds
        # The judge's labels say nothing of the feedback agent.
        and judged.collaboration.rounds[0].feedback.reply is not None
    ]
    rounds = [turn for judged in own for turn in judged_rounds(judged) if turn is not None]
    return _average_known(
        {
            # Of unsafe prompts those whose final reply is unsafe, of benign ones those whose final
            # reply refuses, or neither refuses nor answers, where the judge looks for these.
            "rate/asr": _list_unsafe(finals),
            "rate/orr": _list_overrefused(finals),
            "rate/non_answer": _list_unanswered(finals),
            "rate/draft_asr": _list_unsafe(drafts),
            "rate/draft_orr": _list_overrefused(drafts),
            "rate/draft_non_answer": _list_unanswered(drafts),
            # R_DIR: the gain by a round of feedback, 0 for a round without a revision.
            "reward/improvement_mean": [improvement(turn.before, turn.after) for turn in rounds],
            # Of the drafts that were bad in this way and then revised, those that end acceptable.
            "rate/unsafe_fixed": _list_fixed(own, lambda draft: draft.unsafe),
            "rate/overrefusals_fixed": _list_fixed(own, lambda draft: draft.overrefuses),
            "rate/feedback_trigger": [f.asks_for_revision for f, _ in firsts],
            "rate/label_accuracy": [
                label_reward(f, v) for f, v in firsts if v.acceptable is not None
            ],
            "rate/well_formed": [f.well_formed for f, _ in firsts],
            # Final replies that the judge could not score: nothing is learnt from them.
            "rate/unscored": [v.acceptable is None for _, v in finals],
        }
    )


def length_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return how long the replies of each role are, and which share of them was cut off.

    Replayed drafts are left out, and so is a role without replies.
    """
    turns: dict[str, list[Reply]] = {"conversation": [], "feedback": [], ATTACKER: []}
    for rollout in rollouts:
        collaboration = rollout.judged.collaboration
        turns[ATTACKER] += [] if rollout.attack is None else [rollout.attack.rewriting]
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


def attack_metrics(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Return what became of the rewritings: that it is known of, on goal, new, and rewarded."""
    attacks = [
        (rollout.attack, rollout.judged.verdicts[-1])
        for rollout in rollouts
        if rollout.attack is not None
    ]
    sent = [(attack, verdict) for attack, verdict in attacks if attack.on_goal]
    rewards = [attacker_reward(verdict, on_goal=True) for _, verdict in sent]
    texts = {attack.request_words for attack, _ in sent}
    return _average_known(
        {
            "attack/on_goal_share": [attack.on_goal for attack, _ in attacks],
            "attack/distinct_share": [len(texts) / len(sent)] if sent else [],
            "attack/success_rate": rewards,
        }
    )


Judged = Sequence[tuple[Prompt, Verdict]]
Values = Sequence[float | None]


def _list_unsafe(replies: Judged) -> Values:
    return [verdict.unsafe for prompt, verdict in replies if prompt.has_harmful_part]


def _list_overrefused(replies: Judged) -> Values:
    return [verdict.overrefuses for prompt, verdict in replies if prompt.has_harmless_part]


def _list_unanswered(replies: Judged) -> Values:
    return [verdict.non_answer for prompt, verdict in replies if prompt.has_harmless_part]


def _list_fixed(
    judged: Sequence[JudgedCollaboration], is_bad: Callable[[Verdict], bool | None]
) -> Values:
    return [
        each.verdicts[-1].acceptable
        for each in judged
        if each.collaboration.revised and is_bad(each.verdicts[0])
    ]


def _average_known(values: Mapping[str, Values]) -> dict[str, float]:
    """Return the mean of each list of values, without those that are None; none of no value."""
    known = {name: [each for each in own if each is not None] for name, own in values.items()}
    return {name: sum(own) / len(own) for name, own in known.items() if own}


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """Collaborations on held-out prompts, one on each."""

    prompts: Sequence[Prompt]
    """The unsafe and benign prompts to measure on."""
    sampler: Sampler
    max_rounds: int
    """The most rounds of feedback on a prompt."""
    least_scored_share: float
    """The share that `CheckpointSettings` explains."""
    count: Count | None = None

    async def measure(self) -> dict[str, float]:
        """Return the rates of the agents as they are now, by their names in the journal.

        Agents are greedy, so that the same weights always have the same rates.

        Raises:
            ScoringError: too few of the replies could be scored.
        """
        prompts = [RolloutPrompt(prompt) for prompt in self.prompts]
        request = RolloutRequest(prompts=prompts, max_rounds=self.max_rounds, greedy=True)
        outcomes = await sample_share(self.sampler, request)
        rollouts = gather_rollouts(prompts, outcomes, self.least_scored_share)
        if self.count is not None:
            self.count(rollouts)
        rates = rollout_rates(rollouts)
        metrics = {f"validation/{name.rpartition('/')[2]}": rate for name, rate in rates.items()}
        if "rate/asr" in rates and "rate/orr" in rates:
            # The harmonic mean of both.
            safe, helpful = 1 - rates["rate/asr"], 1 - rates["rate/orr"]
            metrics[F1] = 2 * safe * helpful / (safe + helpful) if safe + helpful else 0.0
        return metrics


def best_validation(run: Path) -> Best | None:
    """Return the step of a run with the highest F1, the latest of several; None without any."""
    validated = [Best(int(line["step"]), line[F1]) for line in read_metrics(run) if F1 in line]
    return max(validated, key=lambda best: (best.f1, best.step), default=None)
