"""Whether a run's turns fit into its models' context, told before the first step."""

import logging
from collections.abc import Iterator, Sequence

from waltzrl.errors import InputError
from waltzrl.policies.local import LocalPolicy
from waltzrl.records import Feedback, Prompt, Reply, Round
from waltzrl.training.roles import Team

EMPTY = Reply(text="")

logger = logging.getLogger(__name__)


def require_context(team: Team, prompts: Sequence[Prompt], max_rounds: int) -> None:
    """Warn once if the longest prompt may not fit with its replies and feedback.

    Its length is that in characters, which need not be the most tokens.

    Raises:
        InputError: not even the shortest one can be drafted and reviewed.
    """
    if not prompts:
        return
    prompts = sorted(prompts, key=lambda prompt: sum(len(m.full_text) for m in prompt.messages))
    advice = "lower agents.max_new_tokens, or choose a base with a longer context"
    # If not even a draft on the shortest prompt fits, no step can be taken.
    for role, needed, context in _list_needs(team, prompts[0], 0):
        if needed > context:
            raise InputError(
                f"no prompt fits: the shortest one and what is written about it may take {needed} "
                f"tokens, but the context of the {role} agent has {context}; {advice}"
            )
    for role, needed, context in _list_needs(team, prompts[-1], max_rounds):
        if needed > context:
            logger.warning(
                "the longest prompt and what is written about it may take %d tokens, but the "
                "context of the %s agent has %d: collaborations that do not fit are left out; %s",
                *(needed, role, context, advice),
            )
            return


def _list_needs(team: Team, prompt: Prompt, rounds: int) -> Iterator[tuple[str, int, int]]:
    """Yield each role, the most tokens that a turn of it takes with all before it, and its context.

    A reply counts as many tokens as it may have.
    """
    drafter, reviewer = team.conversation, team.feedback
    reply, feedback = drafter.sampling.max_new_tokens, reviewer.sampling.max_new_tokens
    asked = (Round(feedback=Feedback(unsafe=True, overrefuse=False)),) * rounds
    messages = drafter.draft_messages(prompt)
    if rounds:
        messages = drafter.revision_messages(prompt, EMPTY, asked)
    for role, agent, turns, written in (
        ("conversation", drafter, messages, reply + rounds * (reply + feedback)),
        ("feedback", reviewer, reviewer.review_messages(prompt, EMPTY), reply + feedback),
    ):
        policy = agent.policy
        if isinstance(policy, LocalPolicy) and policy.context is not None:
            yield role, len(policy.render(turns)) + written, policy.context
