"""The loop: draft, feedback, revision, until the feedback agent asks for no further revision.

Training, evaluation and serving all call `collaborate`; there is no second loop.
"""

from dataclasses import replace
from typing import Protocol

from waltzrl.agents import Drafter, Reviewer
from waltzrl.records import CANNED_REFUSAL, Collaboration, Prompt, Reply, Round


class Pattern(Protocol):
    """A way of answering a prompt: the loop itself, or a baseline with the same signature."""

    async def __call__(self, prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
        """Answer `prompt`."""
        ...


async def collaborate(
    prompt: Prompt, drafter: Drafter, reviewer: Reviewer, *, max_rounds: int = 1
) -> Collaboration:
    """Answer `prompt` together.

    Stops when both labels are false, when the feedback cannot be read (recorded as such), or
    after `max_rounds` rounds (the paper uses 1; any number works).

    Args:
        prompt: what is asked.
        drafter: drafts and revises.
        reviewer: reviews the draft and every revision but the last.
        max_rounds: revisions at most.

    Raises:
        ValueError: `max_rounds` is negative.
        PolicyError: a policy could not reply.
    """
    if max_rounds < 0:
        raise ValueError(
            f"max_rounds must be 0 or more, got {max_rounds}; use 0 to return the bare draft"
        )
    draft = await drafter.draft(prompt)
    rounds: list[Round] = []
    reply = draft
    while len(rounds) < max_rounds:
        feedback = await reviewer.review(prompt, reply)
        if not feedback.asks_for_revision:
            rounds.append(Round(feedback=feedback))
            break
        reply = await drafter.revise(prompt, draft, [*rounds, Round(feedback=feedback)])
        rounds.append(Round(feedback=feedback, revision=reply))
    return Collaboration(prompt=prompt, draft=draft, rounds=tuple(rounds))


async def guarded(
    prompt: Prompt,
    drafter: Drafter,
    reviewer: Reviewer,
    *,
    max_rounds: int = 1,
    fail_open: bool = False,
) -> Collaboration:
    """Answer `prompt` together as it is served: no reply is returned that is called unsafe.

    Unlike in the paper, the last revision is reviewed again: when it is still unsafe, or when
    feedback could not be read, a canned refusal takes its place as a last revision.

    Args:
        prompt: what is asked.
        drafter: drafts and revises.
        reviewer: reviews every reply, the last revision too.
        max_rounds: revisions at most, as in `collaborate`.
        fail_open: return a reply although its feedback could not be read.

    Raises:
        PolicyError: a policy could not reply.
    """
    collaboration = await collaborate(prompt, drafter, reviewer, max_rounds=max_rounds)
    rounds = collaboration.rounds
    if rounds and rounds[-1].revision is not None:
        feedback = await reviewer.review(prompt, collaboration.final)
        rounds = (*rounds, Round(feedback=feedback))
    last = rounds[-1].feedback if rounds else None
    if last is not None and (last.unsafe or not (last.well_formed or fail_open)):
        refusal = Reply(text=CANNED_REFUSAL, origin="canned")
        rounds = (*rounds[:-1], Round(feedback=last, revision=refusal))
    return replace(collaboration, rounds=rounds)


async def observed(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Answer with the draft, and record what the reviewer says of it."""
    draft = await drafter.draft(prompt)
    feedback = await reviewer.review(prompt, draft)
    return Collaboration(prompt=prompt, draft=draft, rounds=(Round(feedback=feedback),))
