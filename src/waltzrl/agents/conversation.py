"""The conversation agent: drafts a reply, and revises it after feedback."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

from waltzrl.agents.fence import fence
from waltzrl.agents.wording import Wording
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Message, Prompt, Reply, Round


class Drafter(Protocol):
    """Anything in the conversation agent's role: a policy, a draft that exists, a gateway."""

    async def draft(self, prompt: Prompt) -> Reply:
        """Answer the prompt: c_0 ~ pi_c(. | p).

        Raises:
            PolicyError: there is no reply.
        """
        ...

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Answer again after the last round's feedback: c_t ~ pi_c(. | p, H_{t-1}).

        Raises:
            PolicyError: there is no reply.
        """
        ...


class ConversationAgent:
    """A policy in the role that answers the user."""

    def __init__(self, policy: Policy, wording: Wording, sampling: Sampling) -> None:
        self.policy = policy
        self.wording = wording
        self.sampling = sampling

    async def draft(self, prompt: Prompt) -> Reply:
        """Answer the prompt."""
        return await self.policy.reply(self.draft_messages(prompt), self.sampling)

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Answer again after the last round's feedback."""
        return await self.policy.reply(self.revision_messages(prompt, draft, rounds), self.sampling)

    def draft_messages(self, prompt: Prompt) -> list[Message]:
        """Return what the agent is shown for its draft."""
        return [*system_messages(prompt, self.wording), *prompt.messages]

    def revision_messages(
        self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]
    ) -> list[Message]:
        """Return what the agent is shown for a revision."""
        return [*self.draft_messages(prompt), *revision_turns(draft, rounds, self.wording)]


class GivenDraft:
    """A drafter whose draft exists already; another drafter revises it."""

    def __init__(self, draft: Reply, reviser: Drafter) -> None:
        self._draft = replace(draft, origin="given")
        self._reviser = reviser

    async def draft(self, prompt: Prompt) -> Reply:
        """Return the draft, whose origin is `given`; no policy is asked."""
        return self._draft

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Let the other drafter revise."""
        return await self._reviser.revise(prompt, draft, rounds)


def system_messages(prompt: Prompt, wording: Wording) -> list[Message]:
    """Return our system message; none where the wording or the prompt says so."""
    system = wording.conversation_system
    if not system or prompt.messages[0].role == "system":
        return []
    return [Message(role="system", content=system)]


def revision_turns(draft: Reply, rounds: Sequence[Round], wording: Wording) -> list[Message]:
    """Return the turns that follow the prompt when a revision is asked for.

    Of each feedback only its text is there, fenced; labels and reasoning are left out, as in the
    paper. Tool calls are spelled as text: nobody has run them, and an API would ask for results.
    """
    turns: list[Message] = []
    reply = draft
    for round_ in rounds:
        notes = wording.revise.format(feedback=fence("feedback", round_.feedback.text))
        turns += [
            Message(role="assistant", content=reply.full_text),
            Message(role="user", content=notes),
        ]
        reply = round_.revision or reply
    return turns
