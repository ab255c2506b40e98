"""The two agents that are trained, their starting weights, and what each may learn."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from waltzrl.agents import ConversationAgent, FeedbackAgent, Wording
from waltzrl.policies import Sampling
from waltzrl.policies.local import Decoding, LocalPolicy
from waltzrl.policies.weights import CausalLM

RoleName = Literal["conversation", "feedback"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """Whose weights a role speaks with: a model of its own, or an adapter on a shared base."""

    causal_lm: CausalLM
    adapter: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Both agents over local weights, beside the frozen weights they started from."""

    conversation: ConversationAgent
    feedback: FeedbackAgent
    starting: ConversationAgent
    """The conversation agent as it was at the start; its drafts can be replayed."""
    weights: Mapping[RoleName, Weights]
    references: Mapping[RoleName, Weights]
    """Frozen; each role's KL penalty is measured against its own."""

    def seed(self, number: int) -> None:
        """Begin the chance of all policies anew."""
        for offset, policy in enumerate(self.policies):
            policy.seed(number * 3 + offset)

    @property
    def policies(self) -> tuple[LocalPolicy, ...]:
        agents = (self.conversation, self.feedback, self.starting)
        return tuple(agent.policy for agent in agents if isinstance(agent.policy, LocalPolicy))


def make_pair(
    conversation: Weights,
    feedback: Weights,
    reference: Weights,
    wording: Wording,
    words: int,
    decoding: Decoding | None = None,
) -> Pair:
    """Put both roles on their weights; rollouts sample at temperature 1, `words` tokens a turn.

    The reference is that of both roles, and drafts for the conversation agent as it was.
    """
    sampling = Sampling(max_new_tokens=words, temperature=1.0)
    talking, reviewing, starting = (
        LocalPolicy(
            weights.causal_lm.model,
            weights.causal_lm.tokenizer,
            weights.adapter,
            decoding=decoding,
        )
        for weights in (conversation, feedback, reference)
    )
    return Pair(
        conversation=ConversationAgent(talking, wording, sampling),
        feedback=FeedbackAgent(reviewing, wording, sampling),
        starting=ConversationAgent(starting, wording, sampling),
        weights={"conversation": conversation, "feedback": feedback},
        references={"conversation": reference, "feedback": reference},
    )
