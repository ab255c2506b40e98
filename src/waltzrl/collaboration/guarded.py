"""The loop as it is served: nothing leaves that was called unsafe, or that nobody could review."""

from dataclasses import replace

from waltzrl.agents import ConversationAgent, Reviewer
from waltzrl.collaboration.baselines import CANNED_REFUSAL
from waltzrl.collaboration.loop import collaborate
from waltzrl.records import Collaboration, Prompt, Reply, Round


async def guarded(
    prompt: Prompt,
    conversation: ConversationAgent,
    reviewer: Reviewer,
    *,
    max_rounds: int = 1,
    fail_open: bool = False,
) -> Collaboration:
    """Answer `prompt` together, and decline where the newest reply may not leave.

    Unlike in the paper, a revision is reviewed again: when it is still unsafe, or when feedback
    could not be read, a canned refusal takes its place as a last revision.

    Args:
        prompt: what is asked.
        conversation: drafts and revises.
        reviewer: reviews every reply, the last revision too.
        max_rounds: revisions at most, as in `collaborate`.
        fail_open: let a reply go out although its feedback could not be read.

    Raises:
        PolicyError: a policy could not reply.
    """
    said = await collaborate(prompt, conversation, reviewer, max_rounds=max_rounds)
    rounds = said.rounds
    if rounds and rounds[-1].revision is not None:
        rounds = (*rounds, Round(feedback=await reviewer.review(prompt, said.final)))
    last = rounds[-1].feedback if rounds else None
    if last is not None and (last.unsafe or not (last.well_formed or fail_open)):
        rounds = (*rounds[:-1], Round(feedback=last, revision=Reply(text=CANNED_REFUSAL)))
    return said if rounds is said.rounds else replace(said, rounds=rounds)


async def observed(
    prompt: Prompt, conversation: ConversationAgent, reviewer: Reviewer
) -> Collaboration:
    """Answer with the draft, and record what the reviewer says of it."""
    draft = await conversation.draft(prompt)
    feedback = await reviewer.review(prompt, draft)
    return Collaboration(prompt=prompt, draft=draft, rounds=(Round(feedback=feedback),))
