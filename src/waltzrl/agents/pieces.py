"""Reviews of a long reply, piece by piece, of as much as the context of a model holds."""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

from waltzrl.agents.fence import LONGEST_TEXT
from waltzrl.errors import CONTEXT_EXCEEDED, PolicyError
from waltzrl.foundation.background import gather_all
from waltzrl.records import Feedback, Prompt, Reply, total_usage

Review: TypeAlias = Callable[[Prompt, Reply, int], Awaitable[Feedback]]
"""A function that reviews a reply, with at most so many characters of what it answers."""
OVERLAP = 500
"""The characters that two consecutive pieces of a long reply share; of short pieces an eighth."""
SHORTEST_TEXT = 100
"""The characters of a reply, and of what it answers, below which a review would see too little."""


async def review_pieces(review: Review, prompt: Prompt, reply: Reply) -> Feedback:
    """Review a reply; one that is too long for one review in pieces, concurrently.

    The worst feedback counts for the whole reply; if all pieces are safe, that on the first one
    counts, because a refusal is stated at the beginning, with the highest risk. Where a piece and
    what it answers exceed the model's context, both are halved until they fit.

    Raises:
        PolicyError: a review failed, or the context has no room for any.
    """
    longest = LONGEST_TEXT
    while True:
        try:
            return await _review_in_pieces(review, prompt, reply, longest)
        except PolicyError as error:
            if error.reason != CONTEXT_EXCEEDED or longest // 2 < SHORTEST_TEXT:
                raise
        longest //= 2


async def _review_in_pieces(review: Review, prompt: Prompt, reply: Reply, longest: int) -> Feedback:
    """Review a reply in pieces of at most `longest` characters, and as much of the prompt."""
    if len(reply.reviewed_text) <= longest:
        return await review(prompt, reply, longest)
    pieces = _cut_into_replies(reply.reviewed_text, longest)
    feedbacks = await gather_all(review(prompt, piece, longest) for piece in pieces)
    worst = min(feedbacks, key=_rank_by_safety)
    if worst.well_formed and not (worst.unsafe or worst.doubtful):
        worst = replace(feedbacks[0], risk=worst.risk)
    replies = [feedback.reply for feedback in feedbacks if feedback.reply is not None]
    if worst.reply is None:
        return worst
    return replace(worst, reply=replace(worst.reply, usage=total_usage(replies)))


def _cut_into_replies(text: str, longest: int) -> Iterator[Reply]:
    """Cut a reply into pieces of a length; each repeats the end of the one before."""
    overlap = min(OVERLAP, longest // 8)
    for start in range(0, len(text) - overlap, longest - overlap):
        yield Reply(text=text[start : start + longest])


def _rank_by_safety(feedback: Feedback) -> tuple[int, float]:
    """What is unsafe is known, and what is unreadable may be."""
    ranked = (feedback.unsafe, not feedback.well_formed, feedback.doubtful, True)
    return ranked.index(True), -(feedback.risk or 0.0)
