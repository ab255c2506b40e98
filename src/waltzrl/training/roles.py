"""The roles of a run: each is an agent, the weights that it learns, and a frozen reference."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from waltzrl.agents import ConversationAgent, FeedbackAgent, Wording
from waltzrl.policies import Sampling
from waltzrl.policies.copies import DecodingCopy
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.vllm import VllmPolicy
from waltzrl.policies.weights import Weights
from waltzrl.training.sharding import ShardedWeights, shard_models
from waltzrl.training.validation import Best

Agent = ConversationAgent | FeedbackAgent
AGENTS: Mapping[str, type[Agent]] = {
    "conversation": ConversationAgent,
    "feedback": FeedbackAgent,
}
"""The agent of each role that a run can train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One agent over local weights."""

    agent: Agent
    weights: Weights
    reference: Weights
    """The frozen weights that the role's KL penalty is measured against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """All roles of a run by name, and the conversation agent as it was at the start."""

    roles: Mapping[str, Role]
    initial: ConversationAgent
    """The agent over the conversation role's reference; its drafts can be replayed."""
    best: Best | None = None
    """The validated step whose weights these are; None where they are the last step's."""

    @property
    def conversation(self) -> ConversationAgent:
        agent = self.roles["conversation"].agent
        assert isinstance(agent, ConversationAgent)
        return agent

    @property
    def feedback(self) -> FeedbackAgent:
        agent = self.roles["feedback"].agent
        assert isinstance(agent, FeedbackAgent)
        return agent

    @property
    def weights(self) -> dict[str, Weights]:
        return {name: role.weights for name, role in self.roles.items()}

    def greedy(self) -> "Team":
        """Return the same agents, over the same policies, taking the likeliest token each time."""
        return self._with_agents(_make_greedy)

    def sampled_by(self, policy: Callable[[LocalPolicy], VllmPolicy]) -> "Team":
        """Return the same agents, each over what `policy` returns in place of its local policy."""

        def sampled(agent: Agent) -> Agent:
            assert isinstance(agent.policy, LocalPolicy)
            return type(agent)(policy(agent.policy), agent.wording, agent.sampling)

        initial = sampled(self.initial)
        assert isinstance(initial, ConversationAgent)
        return replace(self._with_agents(sampled), initial=initial)

    def _with_agents(self, change: Callable[[Agent], Agent]) -> "Team":
        roles = {name: replace(role, agent=change(role.agent)) for name, role in self.roles.items()}
        return replace(self, roles=roles)

    def seed(self, number: int) -> None:
        """Restart the random numbers of every policy; each gets a seed of its own."""
        agents = [*(role.agent for role in self.roles.values()), self.initial]
        for offset, agent in enumerate(agents):
            assert isinstance(agent.policy, LocalPolicy | VllmPolicy)
            agent.policy.seed(number * len(agents) + offset)


def _make_greedy(agent: Agent) -> Agent:
    return type(agent)(agent.policy, agent.wording, replace(agent.sampling, temperature=0.0))


def make_team(
    weights: Mapping[str, Weights],
    references: Mapping[str, Weights],
    wording: Wording,
    max_new_tokens: int | Mapping[str, int],
    dtype: torch.dtype = torch.float32,
) -> Team:
    """Give every role an agent over its weights; rollouts sample at temperature 1.

    Args:
        weights: of each role, by name; `conversation` is always one of them.
        references: of the same roles; they may share one.
        wording: the texts that the agents are prompted with.
        max_new_tokens: of each turn, for all roles or for each.
        dtype: that all policies decode in.
    """
    limits = (
        dict.fromkeys(weights, max_new_tokens)
        if isinstance(max_new_tokens, int)
        else max_new_tokens
    )

    def sampling(role: str) -> Sampling:
        return Sampling(max_new_tokens=limits[role], temperature=1.0)

    weights = shard_models(weights, dtype)
    copies: dict[int, DecodingCopy] = {
        id(own.causal_lm.model): own.copy
        for own in weights.values()
        if isinstance(own, ShardedWeights) and own.copy is not None
    }

    def policy(source: Weights) -> LocalPolicy:
        model, tokenizer = source.causal_lm.model, source.causal_lm.tokenizer
        if id(model) not in copies and (copied := decoding_copy(model, dtype)) is not None:
            copies[id(model)] = copied
        return LocalPolicy(model, tokenizer, source.adapter, copy=copies.get(id(model)))

    return Team(
        roles={
            name: Role(
                agent=AGENTS[name](policy(own), wording, sampling(name)),
                weights=own,
                reference=references[name],
            )
            for name, own in weights.items()
        },
        initial=ConversationAgent(
            policy(references["conversation"]), wording, sampling("conversation")
        ),
    )


def decoding_copy(model: PreTrainedModel | PeftModel, dtype: torch.dtype) -> DecodingCopy | None:
    """Return what decodes for a model with adapters, or of another dtype; None: the model does."""
    if isinstance(model, PeftModel) or model.dtype != dtype:
        return DecodingCopy(model, dtype)
    return None
