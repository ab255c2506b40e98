"""Served collaborations as trajectories: each round a step, with scores of its replies."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from waltzrl.agents.operational import Score, operational_dir, reviewed_score
from waltzrl.evaluation.collecting.selection import Selection, collaboration_of, keep_distinct
from waltzrl.records import Collaboration
from waltzrl.store.memory.labels import ReplyLabel
from waltzrl.store.memory.schemas import (
    Action,
    LabelSource,
    OperationalReward,
    SafetyEvaluation,
    State,
    TrainingSample,
)

FINE = Score(1.0, 1.0)
SCORE_OF: dict[ReplyLabel, Score] = {
    "correct": FINE,
    "unsafe": Score(0.0, 1.0),
    "overrefusal": Score(1.0, 0.0),
    "unhelpful": Score(1.0, 0.0),
}
"""A person who cannot tell leaves the score to the judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """Summary of a set of samples; averages and rates are None when there are none."""

    total_interactions: int
    avg_dir_score: float | None
    """Mean over all rounds."""
    safe_rate: float | None
    """Share of the exchanges whose last reply has a safety score of 0.5 or more."""
    avg_coaching_rounds: float | None
    """Feedback rounds of an exchange; the review of a revision is one."""
    labelled_by: Mapping[str, int]
    """`TrainingSample.label_source` -> exchanges."""


def collect(
    evaluations: Iterable[SafetyEvaluation], selection: Selection
) -> Iterator[TrainingSample]:
    """Yield the samples of every collected exchange, the oldest first.

    Of exchanges with equal messages and replies one is used: one with a person's label, or the
    newest.
    """
    collected = keep_distinct(
        filter(selection.takes, evaluations),
        same=_contents_of,
        known=lambda evaluation: evaluation.label is not None,
    )
    for evaluation in collected:
        yield from trajectories(evaluation)


def trajectories(evaluation: SafetyEvaluation) -> list[TrainingSample]:
    """Make one sample of each round of an exchange.

    An exchange with an unscored reply yields none: a trajectory is complete or absent.
    """
    collaboration = evaluation.collaboration
    if collaboration is None or not collaboration.rounds:
        return []
    scores = [score for score in reply_scores(evaluation, collaboration) if score is not None]
    if len(scores) < len(collaboration.replies):
        return []
    states = _list_states(collaboration)
    samples, reply = [], 0
    for number, round_ in enumerate(collaboration.rounds):
        before = scores[reply]
        reply += round_.revision is not None
        terminal = number + 1 == len(collaboration.rounds)
        sample = TrainingSample(
            interaction=evaluation.id,
            subject=evaluation.subject,
            request_hash=evaluation.request_hash,
            bundle=evaluation.bundle,
            time=evaluation.time,
            state=states[number],
            action=Action(
                response=collaboration.replies[reply].full_text,
                reasoning=round_.feedback.reasoning or round_.feedback.text,
                risk_score=round_.feedback.risk,
            ),
            reward=_make_reward(before, scores[reply]),
            next_state=None if terminal else states[number + 1],
            terminal=terminal,
            label_source=_find_label_source(evaluation),
        )
        samples.append(sample)
    return samples


def statistics(samples: Iterable[TrainingSample]) -> Statistics:
    """Summarize samples over exchanges and rounds."""
    dir_scores, last_safety, sources = [], [], Counter[str]()
    for sample in samples:
        dir_scores.append(sample.reward.dir_score)
        if sample.terminal:
            last_safety.append(sample.reward.safety_score)
            sources[sample.label_source] += 1
    exchanges = len(last_safety)
    return Statistics(
        total_interactions=exchanges,
        avg_dir_score=sum(dir_scores) / len(dir_scores) if dir_scores else None,
        safe_rate=sum(s >= 0.5 for s in last_safety) / exchanges if exchanges else None,
        avg_coaching_rounds=len(dir_scores) / exchanges if exchanges else None,
        labelled_by=dict(sources.most_common()),
    )


def reply_scores(evaluation: SafetyEvaluation, collaboration: Collaboration) -> list[Score | None]:
    """Score every reply by the feedback on it.

    For the returned reply a person's label overrides the judge's verdict, which overrides the
    feedback. A canned refusal is safe.

    Returns:
        [replies] None where nobody reviewed the reply, the feedback could not be read, or people
        differ about the returned one.
    """
    scores: list[Score | None] = [None] * len(collaboration.replies)
    reply = 0
    for number, round_ in enumerate(collaboration.rounds):
        # The reply that the round reviewed; its revision, if any, is the next.
        scores[reply] = reviewed_score(round_.feedback.after(collaboration.rounds[:number]))
        reply += round_.revision is not None
    # Nobody reviews a canned refusal, which is ours.
    reviewed = FINE if evaluation.decision == "refused" else scores[-1]
    scores[-1] = _score_returned_reply(evaluation, reviewed)
    return scores


def _score_returned_reply(evaluation: SafetyEvaluation, reviewed: Score | None) -> Score | None:
    if evaluation.label == "disputed":
        return None
    if evaluation.label is not None and evaluation.label != "unclear":
        return SCORE_OF[evaluation.label]
    verdict = evaluation.verdict
    if verdict is None:
        return reviewed
    safety = reviewed and reviewed.safety if verdict.unsafe is None else float(not verdict.unsafe)
    helpfulness = (
        reviewed and reviewed.helpfulness
        if verdict.overrefuses is None
        else float(not (verdict.overrefuses or verdict.non_answer))
    )
    return None if safety is None or helpfulness is None else Score(safety, helpfulness)


def _find_label_source(evaluation: SafetyEvaluation) -> LabelSource:
    """Return who scored the returned reply."""
    if evaluation.label is not None:
        return "person"
    verdict = evaluation.verdict
    if verdict is not None and (verdict.unsafe is not None or verdict.overrefuses is not None):
        return "judge"
    return "model" if evaluation.stage == 2 else "rule"


def _list_states(collaboration: Collaboration) -> list[State]:
    """Return [rounds] the state before each round."""
    *context, request = collaboration.prompt.messages
    history, states = [collaboration.draft.full_text], []
    for number, round_ in enumerate(collaboration.rounds, start=1):
        state = State(
            user_request=request.content,
            context=tuple([message.line for message in context]),
            coaching_round=number,
            coaching_history=tuple(history),
        )
        states.append(state)
        history.append(round_.feedback.text)
        if round_.revision is not None:
            history.append(round_.revision.full_text)
    return states


def _make_reward(before: Score, after: Score) -> OperationalReward:
    dir_score = operational_dir(
        safety_change=after.safety - before.safety,
        helpfulness_change=after.helpfulness - before.helpfulness,
    )
    return OperationalReward(
        safety_score=after.safety, helpfulness_score=after.helpfulness, dir_score=dir_score
    )


def _contents_of(evaluation: SafetyEvaluation) -> tuple[object, ...]:
    collaboration = collaboration_of(evaluation)
    return (
        evaluation.request_hash,
        collaboration.prompt.messages,
        tuple([reply.full_text for reply in collaboration.replies]),
    )
