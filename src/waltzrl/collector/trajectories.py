"""Served collaborations as steps: before a round, the round, what it was worth, and after it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from waltzrl.collector.operational import operational_dir
from waltzrl.collector.scores import Score, scores
from waltzrl.collector.selection import Selection, distinct, said_in
from waltzrl.memory.schemas import (
    Action,
    OperationalReward,
    SafetyEvaluation,
    State,
    TrainingSample,
)
from waltzrl.records import Collaboration


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a set of samples says about those who served; None where there is none."""

    total_interactions: int
    avg_dir_score: float | None
    """Mean over all rounds."""
    safe_rate: float | None
    """Share of the interactions whose last reply has a safety score of 0.5 or more."""
    avg_coaching_rounds: float | None
    """Feedback rounds in an interaction; the review of a revision is one."""


def collect(
    evaluations: Iterable[SafetyEvaluation], selection: Selection
) -> Iterator[TrainingSample]:
    """Yield the samples of every interaction that is taken, the oldest first.

    Of those in which the same was asked and said one is taken: one that a person labelled, or
    else the newest.
    """
    taken = filter(selection.takes, evaluations)
    for evaluation in distinct(taken, _what_was_said, lambda one: one.label is not None):
        yield from trajectories(evaluation)


def trajectories(evaluation: SafetyEvaluation) -> list[TrainingSample]:
    """Make one sample of each round of an interaction.

    None is made when a reply has no score: a trajectory is whole or not there.
    """
    said = evaluation.collaboration
    if said is None or not said.rounds:
        return []
    worth = [one for one in scores(evaluation, said) if one is not None]
    if len(worth) < len(said.replies):
        return []
    states = _states(said)
    samples, at = [], 0
    for number, turn in enumerate(said.rounds):
        before = worth[at]
        at += turn.revision is not None
        terminal = number + 1 == len(said.rounds)
        sample = TrainingSample(
            interaction=evaluation.id,
            subject=evaluation.subject,
            request_hash=evaluation.request_hash,
            bundle=evaluation.bundle,
            time=evaluation.time,
            state=states[number],
            action=Action(
                response=said.replies[at].full_text,
                reasoning=turn.feedback.reasoning or turn.feedback.text,
                risk_score=turn.feedback.risk,
            ),
            reward=_reward(before, worth[at]),
            next_state=None if terminal else states[number + 1],
            terminal=terminal,
        )
        samples.append(sample)
    return samples


def statistics(samples: Iterable[TrainingSample]) -> Statistics:
    """Count interactions, and average over them and their rounds."""
    gains, last_safety = [], []
    for sample in samples:
        gains.append(sample.reward.dir_score)
        if sample.terminal:
            last_safety.append(sample.reward.safety_score)
    interactions = len(last_safety)
    return Statistics(
        total_interactions=interactions,
        avg_dir_score=sum(gains) / len(gains) if gains else None,
        safe_rate=sum(s >= 0.5 for s in last_safety) / interactions if interactions else None,
        avg_coaching_rounds=len(gains) / interactions if interactions else None,
    )


def _states(said: Collaboration) -> list[State]:
    """[rounds]"""
    *context, request = said.prompt.messages
    history, states = [said.draft.full_text], []
    for number, turn in enumerate(said.rounds, start=1):
        state = State(
            user_request=request.content,
            context=tuple([message.line for message in context]),
            coaching_round=number,
            coaching_history=tuple(history),
        )
        states.append(state)
        history.append(turn.feedback.text)
        if turn.revision is not None:
            history.append(turn.revision.full_text)
    return states


def _reward(before: Score, after: Score) -> OperationalReward:
    gain = operational_dir(
        safety_change=after.safety - before.safety,
        helpfulness_change=after.helpfulness - before.helpfulness,
    )
    return OperationalReward(
        safety_score=after.safety, helpfulness_score=after.helpfulness, dir_score=gain
    )


def _what_was_said(evaluation: SafetyEvaluation) -> tuple[object, ...]:
    said = said_in(evaluation)
    return (
        evaluation.request_hash,
        said.prompt.messages,
        tuple([r.full_text for r in said.replies]),
    )
