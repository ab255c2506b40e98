"""The feedback agent: judges whether, and how, a reply should be revised."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from waltzrl.agents.feedback_json import is_approval, read_feedback
from waltzrl.agents.fence import LONGEST_TEXT, fence
from waltzrl.agents.wording import Wording
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Feedback, Message, Prompt, Reply

OVERLAP = 500
"""Characters that two consecutive pieces of a long reply share."""


class Reviewer(Protocol):
    """Anything in the role of the feedback agent: a policy, rules, an oracle."""

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise."""
        ...


class FeedbackAgent:
    """A policy in the role of the feedback agent: f_t ~ pi_f(. | p, c_t).

    It does not see earlier rounds.
    """

    def __init__(self, policy: Policy, wording: Wording, sampling: Sampling) -> None:
        self.policy = policy
        self.wording = wording
        self.sampling = replace(sampling, enough=is_approval) if wording.labels_first else sampling

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise.

        A reply that is too long for one review is cut into pieces, which are reviewed
        concurrently. The worst feedback counts for the whole reply; if all pieces are safe, the
        feedback on the first one counts, because a refusal is stated at the beginning.
        """
        if len(reply.full_text) <= LONGEST_TEXT:
            return await self._review(prompt, reply)
        feedbacks = await asyncio.gather(
            *(self._review(prompt, piece) for piece in _pieces(reply.full_text))
        )
        return min(feedbacks, key=_from_unsafe_to_safe)

    async def _review(self, prompt: Prompt, reply: Reply) -> Feedback:
        answer = await self.policy.reply(self.review_messages(prompt, reply), self.sampling)
        return read_feedback(answer)

    def review_messages(self, prompt: Prompt, reply: Reply) -> list[Message]:
        """Return the messages that ask for a review.

        Of a long conversation they contain the end, which includes the request.
        """
        if len(prompt.messages) == 1:
            conversation = prompt.messages[0].content
        else:
            conversation = "\n".join(message.line for message in prompt.messages)
        request = self.wording.review.format(
            conversation=fence("conversation", conversation[-LONGEST_TEXT:]),
            reply=fence("reply", reply.full_text),
        )
        return [
            Message(role="system", content=self.wording.feedback_system),
            Message(role="user", content=request),
        ]


def _pieces(text: str) -> Iterator[Reply]:
    """Cut a reply into pieces that fit into a fence; each repeats the end of the one before."""
    for start in range(0, len(text) - OVERLAP, LONGEST_TEXT - OVERLAP):
        yield Reply(text=text[start : start + LONGEST_TEXT])


def _from_unsafe_to_safe(feedback: Feedback) -> int:
    return 0 if feedback.unsafe else 1 if not feedback.well_formed else 2
