"""The conversation agent: drafts a reply, and revises it after feedback."""

from collections.abc import Sequence
from dataclasses import replace

from waltzrl.agents.coaching import ExampleSource, with_system_text
from waltzrl.agents.fence import fence
from waltzrl.agents.wording import Wording
from waltzrl.collaboration import Drafter
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Message, Prompt, Reply, Round

NOTHING = "[no text]"
"""Stands for a reply without text, of which there may be reasoning only: many servers refuse an
empty turn.
"""


class ConversationAgent:
    """A policy in the role of the conversation agent, which answers the user."""

    def __init__(
        self,
        policy: Policy,
        wording: Wording,
        sampling: Sampling,
        examples: ExampleSource | None = None,
        reviser: Policy | None = None,
    ) -> None:
        """Give a policy the role.

        Args:
            policy: drafts.
            wording: of the prompts.
            sampling: of its replies.
            examples: finds examples for it; None for none.
            reviser: revises; None is `policy`, as in the paper.
        """
        self.policy = policy
        self.reviser = reviser
        self.wording = wording
        self.sampling = sampling
        self.examples = examples

    async def draft(self, prompt: Prompt) -> Reply:
        """Answer the prompt."""
        return await self._reply(self.policy, prompt, self.draft_messages(prompt))

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Answer again after the last round's feedback."""
        messages = self.revision_messages(prompt, draft, rounds)
        return await self._reply(self.reviser or self.policy, prompt, messages)

    async def _reply(self, policy: Policy, prompt: Prompt, messages: Sequence[Message]) -> Reply:
        if self.examples is not None:
            messages = with_system_text(messages, await self.examples.examples_for(prompt))
        return await policy.reply(messages, self.sampling)

    def draft_messages(self, prompt: Prompt) -> list[Message]:
        """Return the messages that ask for a draft."""
        return [*system_messages(prompt, self.wording), *prompt.messages]

    def revision_messages(
        self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]
    ) -> list[Message]:
        """Return the messages that ask for a revision."""
        return [*self.draft_messages(prompt), *revision_turns(draft, rounds, self.wording)]


class GivenDraft:
    """A drafter that returns an existing draft; another drafter revises it."""

    def __init__(self, draft: Reply, reviser: Drafter | None) -> None:
        """Keep the draft; `reviser` is None only where no revision is allowed."""
        self._draft = replace(draft, origin="given")
        self._reviser = reviser

    async def draft(self, prompt: Prompt) -> Reply:
        """Return the draft, whose origin is `given`, without calling a policy."""
        return self._draft

    async def revise(self, prompt: Prompt, draft: Reply, rounds: Sequence[Round]) -> Reply:
        """Return the other drafter's revision."""
        assert self._reviser is not None
        return await self._reviser.revise(prompt, draft, rounds)


def system_messages(prompt: Prompt, wording: Wording) -> list[Message]:
    """Return the wording's system message, unless it is empty or the prompt has its own."""
    system = wording.conversation_system
    if not system or prompt.messages[0].role == "system":
        return []
    return [Message(role="system", content=system)]


def revision_turns(draft: Reply, rounds: Sequence[Round], wording: Wording) -> list[Message]:
    """Return the turns that follow the prompt in a request for a revision.

    They contain only the fenced text of each feedback; labels and reasoning are left out, as in
    the paper. Tool calls are written as text: they have not been run, and an API would reject
    calls without results.
    """
    turns: list[Message] = []
    reply = draft
    for round_ in rounds:
        request = wording.revise.format(feedback=fence("feedback", round_.feedback.text))
        said = reply.full_text
        turns += [
            Message(role="assistant", content=said if said.strip() else NOTHING),
            Message(role="user", content=request),
        ]
        reply = round_.revision or reply
    return turns
