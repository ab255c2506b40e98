"""The conversation agent: drafts a reply, and revises it when it is told how."""

from collections.abc import Sequence

from waltzrl.agents.fence import fence
from waltzrl.agents.wording import Wording
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Message, Prompt, Reply, Round


class ConversationAgent:
    """A policy in the role that answers the user."""

    def __init__(self, policy: Policy, wording: Wording, sampling: Sampling) -> None:
        self.policy = policy
        self.wording = wording
        self.sampling = sampling

    async def draft(self, prompt: Prompt) -> Reply:
        """Answer the prompt: c_0 ~ pi_c(. | p)."""
        return await self.policy.reply(self.drafting(prompt), self.sampling)

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Answer again after the last round's feedback: c_t ~ pi_c(. | p, H_{t-1})."""
        return await self.policy.reply(self.revising(prompt, draft, rounds), self.sampling)

    def drafting(self, prompt: Prompt) -> list[Message]:
        """What the agent is shown for its draft."""
        messages = list(prompt.messages)
        system = self.wording.conversation_system
        if system and messages[0].role != "system":
            messages.insert(0, Message(role="system", content=system))
        return messages

    def revising(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> list[Message]:
        """What the agent is shown for a revision.

        Of each feedback only its text is there, fenced; labels and reasoning stay behind, as in
        the paper.
        """
        messages = self.drafting(prompt)
        reply = draft
        for said in rounds:
            notes = self.wording.revise.format(feedback=fence("feedback", said.feedback.text))
            messages += [
                Message(role="assistant", content=reply.said),
                Message(role="user", content=notes),
            ]
            reply = said.revision or reply
        return messages
