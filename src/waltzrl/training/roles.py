"""The roles of a run: each is an agent, the weights that it learns, and a frozen reference."""

import copy
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from peft import PeftModel
from transformers import PreTrainedModel

from waltzrl.agents import (
    AttackerAgent,
    ConversationAgent,
    FeedbackAgent,
    Wording,
    load_wording,
)
from waltzrl.agents.exports import ATTACKER
from waltzrl.errors import InputError
from waltzrl.policies import Policy, Sampling
from waltzrl.policies.copies import DecodingCopy
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.vllm import VllmPolicy
from waltzrl.policies.weights import CausalLM, Weights
from waltzrl.records import Feedback, Message, Prompt, Reply, Round
from waltzrl.training.settings import AgentSettings
from waltzrl.training.sharding import ShardedWeights, shard_models

logger = logging.getLogger(__name__)

Agent = ConversationAgent | FeedbackAgent | AttackerAgent
AGENTS: Mapping[str, type[ConversationAgent] | type[FeedbackAgent]] = {
    "conversation": ConversationAgent,
    "feedback": FeedbackAgent,
}
"""The agent of each role of a pair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """One agent over local weights."""

    agent: Agent
    weights: Weights
    reference: Weights
    """The frozen weights that the role's KL penalty is measured against."""


class Best(NamedTuple):
    """The validated step whose weights are exported."""

    step: int
    """Steps taken before it was validated, as in the name of its checkpoint."""
    f1: float


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
        """The agent that reviews; a model that is alone reviews itself."""
        if "feedback" not in self.roles:
            alone = self.conversation
            return FeedbackAgent(alone.policy, alone.wording, alone.sampling)
        agent = self.roles["feedback"].agent
        assert isinstance(agent, FeedbackAgent)
        return agent

    @property
    def attacker(self) -> AttackerAgent:
        agent = self.roles[ATTACKER].agent
        assert isinstance(agent, AttackerAgent)
        return agent

    @property
    def weights(self) -> dict[str, Weights]:
        return {name: role.weights for name, role in self.roles.items()}

    def greedy(self) -> "Team":
        """Return the same agents, over the same policies, taking the likeliest token each time."""

        def take_likeliest(agent: Agent) -> Agent:
            return _with_policy(agent, agent.policy, replace(agent.sampling, temperature=0.0))

        # The initial agent stays as it is: where agents are greedy, no draft is replayed.
        return self._with_agents(take_likeliest)

    def sampled_by(self, policy: Callable[[LocalPolicy], VllmPolicy]) -> "Team":
        """Return the same agents, each over what `policy` returns in place of its local policy."""

        def sampled(agent: Agent) -> Agent:
            assert isinstance(agent.policy, LocalPolicy)
            return _with_policy(agent, policy(agent.policy), agent.sampling)

        initial = sampled(self.initial)
        assert isinstance(initial, ConversationAgent)
        return replace(self._with_agents(sampled), initial=initial)

    def _with_agents(self, change: Callable[[Agent], Agent]) -> "Team":
        roles = {name: replace(role, agent=change(role.agent)) for name, role in self.roles.items()}
        return replace(self, roles=roles)

    def seed(self, number: int) -> None:
        """Restart the random numbers of every policy that has any; each gets a seed of its own."""
        agents = [*(role.agent for role in self.roles.values()), self.initial]
        for offset, agent in enumerate(agents):
            if isinstance(agent.policy, LocalPolicy | VllmPolicy):
                agent.policy.seed(number * len(agents) + offset)


def _with_policy(agent: Agent, policy: Policy, sampling: Sampling) -> Agent:
    """Return an agent of the same role and wording."""
    varied = copy.copy(agent)
    varied.policy, varied.sampling = policy, sampling
    return varied


def make_team(
    weights: Mapping[str, Weights],
    references: Mapping[str, Weights],
    wording: Wording,
    max_new_tokens: int | Mapping[str, int],
    dtype: torch.dtype = torch.float32,
    *,
    replays: bool = True,
) -> Team:
    """Give every role an agent over its weights; rollouts sample at temperature 1.

    Args:
        weights: of each role, by name; `conversation` is always one of them.
        references: of the same roles; they may share one.
        wording: the texts that the agents are prompted with.
        max_new_tokens: of each turn, for all roles or for each.
        dtype: that all policies decode in.
        replays: the initial agent drafts. If it does not, several ranks split full references too.
    """
    limits = (
        dict.fromkeys(weights, max_new_tokens)
        if isinstance(max_new_tokens, int)
        else max_new_tokens
    )

    def sampling(role: str) -> Sampling:
        return Sampling(max_new_tokens=limits[role], temperature=1.0)

    learning, weights = weights, shard_models(weights, dtype)
    if not replays:
        split = shard_models(
            {role: own for role, own in references.items() if own is not learning[role]},
            None,
            dtype,
        )
        # A reference that is the learning weights themselves was split with them above.
        references = {role: split.get(role, weights[role]) for role in references}
    copies: dict[int, DecodingCopy] = {
        id(own.causal_lm.model): own.copy
        for own in weights.values()
        if isinstance(own, ShardedWeights) and own.copy is not None
    }

    def policy(source: Weights) -> LocalPolicy:
        model, tokenizer = source.causal_lm.model, source.causal_lm.tokenizer
        # One copy for all policies of a model, because it is brought up to date before each batch.
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


def make_agents(base: CausalLM, settings: AgentSettings) -> dict[str, Agent]:
    """Return the agents of a pair over a base that is not trained yet."""
    policy, wording = LocalPolicy(base.model, base.tokenizer), load_wording(settings.wording)
    return {
        role: AGENTS[role](policy, wording, Sampling(max_new_tokens=limit, temperature=1.0))
        for role, limit in settings.limits.items()
    }


def require_context(
    agents: Mapping[str, Agent],
    prompts: Sequence[Prompt],
    max_rounds: int,
    find: Callable[[Prompt], str],
) -> None:
    """Warn once if the longest prompt may not fit with its replies and feedback.

    Its length is that in characters, which need not be the most tokens.

    Args:
        agents: the two of a pair, or an attacker, by role.
        prompts: that they will be given.
        max_rounds: of feedback.
        find: returns the file and the line of a prompt.

    Raises:
        InputError: not even the shortest one can be drafted and reviewed.
    """
    if not prompts:
        return
    prompts = sorted(prompts, key=lambda prompt: sum(len(m.full_text) for m in prompt.messages))
    advice = "lower agents.max_new_tokens, or choose a base with a longer context"
    # If not even a draft on the shortest prompt fits, no step can be taken.
    for role, needed, context in _list_needs(agents, prompts[0], 0):
        if needed > context:
            raise InputError(
                f"no prompt fits: the shortest one and what is written about it may take {needed} "
                f"tokens ({find(prompts[0])}), but the context of the {role} agent has {context}; "
                f"{advice}"
            )
    for role, needed, context in _list_needs(agents, prompts[-1], max_rounds):
        if needed > context:
            logger.warning(
                "the longest prompt and what is written about it may take %d tokens (%s), but the "
                "context of the %s agent has %d: collaborations that do not fit are left out; %s",
                *(needed, find(prompts[-1]), role, context, advice),
            )
            return


def _list_needs(
    agents: Mapping[str, Agent], prompt: Prompt, rounds: int
) -> Iterator[tuple[str, int, int]]:
    """Yield each role, the most tokens that a turn of it takes with all before it, and its context.

    A reply counts as many tokens as it may have.
    """
    needs: list[tuple[str, Agent, Sequence[Message], int]] = []
    if isinstance(attacker := agents.get(ATTACKER), AttackerAgent):
        rewritten = attacker.rewriting_messages(prompt)
        needs.append((ATTACKER, attacker, rewritten, attacker.sampling.max_new_tokens))
    drafter, reviewer = agents.get("conversation"), agents.get("feedback")
    if isinstance(drafter, ConversationAgent) and isinstance(reviewer, FeedbackAgent):
        reply, feedback = drafter.sampling.max_new_tokens, reviewer.sampling.max_new_tokens
        asked = (Round(feedback=Feedback(unsafe=True, overrefuse=False)),) * rounds
        empty = Reply(text="")
        messages = drafter.draft_messages(prompt)
        if rounds:
            messages = drafter.revision_messages(prompt, empty, asked)
        needs += [
            ("conversation", drafter, messages, reply + rounds * (reply + feedback)),
            ("feedback", reviewer, reviewer.review_messages(prompt, empty), reply + feedback),
        ]
    for role, agent, turns, written in needs:
        policy = agent.policy
        if isinstance(policy, LocalPolicy) and policy.context is not None:
            yield role, len(policy.render(turns)) + written, policy.context
