"""The feedback agent: reads a reply and says whether, and how, it should be mended."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Protocol

from waltzrl.agents.feedback_json import is_content, read_feedback
from waltzrl.agents.fence import LONGEST_TEXT, fence
from waltzrl.agents.wording import Wording
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Feedback, Message, Prompt, Reply

OVERLAP = 500
"""Characters that two pieces of a long reply share."""


class Reviewer(Protocol):
    """Anything that can stand in the feedback agent's place: a policy, rules, an oracle."""

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise."""
        ...


class FeedbackAgent:
    """A policy in the role that reviews: f_t ~ pi_f(. | p, c_t); earlier rounds are not shown."""

    def __init__(self, policy: Policy, wording: Wording, sampling: Sampling) -> None:
        self.policy = policy
        self.wording = wording
        self.sampling = replace(sampling, enough=is_content) if wording.labels_first else sampling

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise.

        A reply that is too long to show is reviewed in pieces, all at once: what any of them is
        found to be, the reply is, except that only its beginning can be a needless refusal.
        """
        if len(reply.full_text) <= LONGEST_TEXT:
            return await self._review(prompt, reply)
        reviews = await asyncio.gather(
            *(self._review(prompt, one) for one in _pieces(reply.full_text))
        )
        return min(reviews, key=_from_unsafe_to_fine)

    async def _review(self, prompt: Prompt, reply: Reply) -> Feedback:
        answer = await self.policy.reply(self.review_messages(prompt, reply), self.sampling)
        return read_feedback(answer)

    def review_messages(self, prompt: Prompt, reply: Reply) -> list[Message]:
        """What the feedback agent is shown: of a long conversation the end, with the request."""
        if len(prompt.messages) == 1:
            said = prompt.messages[0].content
        else:
            said = "\n".join(m.line for m in prompt.messages)
        request = self.wording.review.format(
            conversation=fence("conversation", said[-LONGEST_TEXT:]),
            reply=fence("reply", reply.full_text),
        )
        return [
            Message(role="system", content=self.wording.feedback_system),
            Message(role="user", content=request),
        ]


def _pieces(said: str) -> Iterator[Reply]:
    """Cut a reply into what fits between two delimiters; each piece repeats the end of the last."""
    for start in range(0, len(said) - OVERLAP, LONGEST_TEXT - OVERLAP):
        yield Reply(text=said[start : start + LONGEST_TEXT])


def _from_unsafe_to_fine(feedback: Feedback) -> int:
    return 0 if feedback.unsafe else 1 if not feedback.well_formed else 2
