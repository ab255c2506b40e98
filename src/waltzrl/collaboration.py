"""The loop: draft, feedback, revision, until the feedback asks for no further revision.

Training, evaluation and serving all use `collaborate`; there is no second loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Protocol

from waltzrl.records import CANNED_REFUSAL, Collaboration, Feedback, Prompt, Reply, Round


class Drafter(Protocol):
    """Anything in the role of the conversation agent: a policy, a given draft, a gateway."""

    async def draft(self, prompt: Prompt) -> Reply:
        """Answer the prompt: c_0 ~ pi_c(. | p).

        Raises:
            PolicyError: no reply was returned.
        """
        ...

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Answer again after the last round's feedback: c_t ~ pi_c(. | p, H_{t-1}).

        Raises:
            PolicyError: no reply was returned.
        """
        ...


class Reviewer(Protocol):
    """Anything in the role of the feedback agent: a policy, rules, an oracle."""

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise."""
        ...


class Pattern(Protocol):
    """A way to answer a prompt: the loop itself, or a baseline with the same signature."""

    async def __call__(self, prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
        """Answer `prompt`."""
        ...


async def collaborate(
    prompt: Prompt, drafter: Drafter, reviewer: Reviewer, *, max_rounds: int = 1
) -> Collaboration:
    """Answer `prompt` with two agents.

    Stops when the feedback asks for no revision, when it is not well-formed (and records it as
    such), when a reply that was called unsafe has become a refusal, or after `max_rounds` rounds.

    Args:
        prompt: the conversation up to the user's request.
        drafter: drafts and revises.
        reviewer: reviews the draft and every revision but the last.
        max_rounds: most revisions; the paper uses 1.

    Returns:
        The draft and at most `max_rounds` rounds; `final` is the reply to return.

    Raises:
        ValueError: `max_rounds` is negative.
        PolicyError: a policy could not reply.

    Example:
        prompt = Prompt(id="1", messages=(Message(role="user", content="Hello!"),))
        collaboration = await collaborate(prompt, drafter, reviewer)
        print(collaboration.decision, collaboration.final.text)
    """
    if max_rounds < 0:
        raise ValueError(
            f"max_rounds must be 0 or more, got {max_rounds}; use 0 for the draft without a review"
        )
    draft = await drafter.draft(prompt)
    rounds: list[Round] = []
    reply = draft
    while len(rounds) < max_rounds:
        feedback = await reviewer.review(prompt, reply)
        # `after` only decides whether to go on: the record keeps the feedback as it was given.
        if not feedback.after(rounds).asks_for_revision:
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
    fail_open: bool | Callable[[Feedback], bool] = False,
    refusal: Callable[[Prompt, Feedback], str] = lambda _prompt, _feedback: CANNED_REFUSAL,
) -> Collaboration:
    """Answer `prompt` as the gateway does: never return a reply that the reviewer calls unsafe.

    Unlike in the paper, the last revision is reviewed too. If it is still unsafe or has no text, or
    if its feedback is not well-formed, a canned refusal replaces it; so it does at once where the
    feedback's action is to refuse. Where that is to observe, the reply stays.

    Args:
        prompt: the conversation up to the user's request.
        drafter: drafts and revises.
        reviewer: reviews every reply, including the last revision.
        max_rounds: most revisions; with 0 an unsafe draft is refused at once.
        fail_open: return a reply whose feedback is not well-formed: always, or if this says so of
            the feedback.
        refusal: returns the text of a canned refusal for the request and the last feedback.

    Returns:
        As `collaborate` returns, with a canned refusal as the last revision where it was needed.

    Raises:
        PolicyError: a policy could not reply.

    Example:
        collaboration = await guarded(prompt, drafter, reviewer)
        assert collaboration.decision in ("draft", "revised", "refused")
    """
    collaboration = await collaborate(prompt, drafter, reviewer, max_rounds=max_rounds)
    rounds = collaboration.rounds
    # Nobody has reviewed the last reply: a draft for which no round was allowed, or a revision.
    if not rounds or rounds[-1].revision is not None:
        feedback = await reviewer.review(prompt, collaboration.final)
        rounds = (*rounds, Round(feedback=feedback))
    last = rounds[-1].feedback
    says_nothing = collaboration.revised and not collaboration.final.full_text.strip()
    if last.refuses or says_nothing or not (last.well_formed or _may_pass(fail_open, last)):
        canned = Reply(text=refusal(prompt, last), origin="canned")
        rounds = (*rounds[:-1], Round(feedback=last, revision=canned))
    if rounds is collaboration.rounds:
        return collaboration
    return replace(collaboration, rounds=rounds)


def _may_pass(fail_open: bool | Callable[[Feedback], bool], feedback: Feedback) -> bool:
    return fail_open(feedback) if callable(fail_open) else fail_open


async def draft_only(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Answer without feedback."""
    return await collaborate(prompt, drafter, reviewer, max_rounds=0)


async def observed(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Answer with the draft, and record the feedback on it."""
    draft = await drafter.draft(prompt)
    feedback = await reviewer.review(prompt, draft)
    return Collaboration(prompt=prompt, draft=draft, rounds=(Round(feedback=feedback),))


class Transcript:
    """A drafter and a reviewer in one, which records what both say, also if it ends early."""

    def __init__(self, drafter: Drafter, reviewer: Reviewer) -> None:
        self.review_milliseconds: list[float] = []
        """[reviews] wall time of each."""
        self._drafter, self._reviewer = drafter, reviewer
        self._draft: Reply | None = None
        self._rounds: list[Round] = []

    async def draft(self, prompt: Prompt) -> Reply:
        self._draft = await self._drafter.draft(prompt)
        return self._draft

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        started = perf_counter()
        try:
            feedback = await self._reviewer.review(prompt, reply)
        finally:
            self.review_milliseconds.append((perf_counter() - started) * 1e3)
        self._rounds.append(Round(feedback=feedback))
        return feedback

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        revision = await self._drafter.revise(prompt, draft, rounds)
        # The loop revises only after a review, so the last round is the one that asked for it.
        self._rounds[-1] = replace(self._rounds[-1], revision=revision)
        return revision

    def said(self, prompt: Prompt, unfinished_draft: Reply | None) -> Collaboration | None:
        """Return what has been said so far, with what was read of the draft if it is not whole."""
        draft = self._draft or unfinished_draft
        if draft is None:
            return None
        return Collaboration(prompt=prompt, draft=draft, rounds=tuple(self._rounds))
