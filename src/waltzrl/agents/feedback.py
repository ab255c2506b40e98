"""The feedback agent: reads a reply and says whether, and how, it should be mended."""

from typing import Protocol

from waltzrl.agents.feedback_json import read_feedback
from waltzrl.agents.fence import LONGEST_TEXT, fence
from waltzrl.agents.wording import Wording
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Feedback, Message, Prompt, Reply


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
        self.sampling = sampling

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        answer = await self.policy.reply(self.reviewing(prompt, reply), self.sampling)
        return read_feedback(answer)

    def reviewing(self, prompt: Prompt, reply: Reply) -> list[Message]:
        """What the feedback agent is shown: of a long conversation the end, with the request."""
        if len(prompt.messages) == 1:
            said = prompt.messages[0].content
        else:
            said = "\n".join(m.line for m in prompt.messages)
        request = self.wording.review.format(
            conversation=fence("conversation", said[-LONGEST_TEXT:]),
            reply=fence("reply", reply.said),
        )
        return [
            Message(role="system", content=self.wording.feedback_system),
            Message(role="user", content=request),
        ]
