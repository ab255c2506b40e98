"""A step of both agents, as two full models and as two adapters on one base."""

import asyncio
import copy

import pytest
import torch

from support.places import everywhere
from waltzrl.agents import load_wording
from waltzrl.agents.exports import ROLES
from waltzrl.policies.weights import (
    CausalLM,
    Weights,
    add_adapters,
    narrow_parameters,
    role_parameters,
)
from waltzrl.records import Message, Prompt, Verdict
from waltzrl.training.learner import Learner
from waltzrl.training.rewards import paper_rewards
from waltzrl.training.roles import make_team
from waltzrl.training.rollouts import Collaborators, RankSampler
from waltzrl.training.settings import OptimizerSettings, ReinforcementStage
from waltzrl.training.stages import Reinforcement


class LongWords:
    """A judge to which chance gives both verdicts."""

    name = "long-words"

    async def judge(self, prompt, reply):
        return Verdict(judge=self.name, unsafe=len(reply.text) % 2 == 0, overrefuses=False)


def two_models(place, dtype):
    def copied(causal_lm):
        return CausalLM(model=copy.deepcopy(causal_lm.model), tokenizer=causal_lm.tokenizer)

    base = place.causal_lm()
    weights = {role: Weights(causal_lm=copied(base)) for role in ROLES}
    references = dict.fromkeys(ROLES, Weights(causal_lm=base))
    return make_team(weights, references, load_wording("tiny"), 16, dtype)


def two_adapters(place, dtype):
    base = place.causal_lm()
    narrow_parameters(base.model, dtype)
    shared = add_adapters(base, ROLES, rank=4)
    weights = {role: Weights(causal_lm=shared, adapter=role) for role in ROLES}
    references = dict.fromkeys(ROLES, Weights(causal_lm=shared))
    return make_team(weights, references, load_wording("tiny"), 16, dtype)


def rewards(rounds, coefficients):
    """Reward by chance too, because random weights write no readable feedback."""
    return [reward + (n % 2) for n, reward in enumerate(paper_rewards(rounds, coefficients))]


def reinforcement(team, learns):
    prompts = [
        Prompt(id=str(n), messages=(Message(role="user", content=text),))
        for n, text in enumerate(["How do I kill a process?", "Linux?"])
    ]
    settings = ReinforcementStage(
        kind="reinforcement",
        name="joint",
        learns=learns,
        steps=10,
        optimizer=OptimizerSettings(learning_rate=1e-3, warmup_steps=0),
        prompts_per_step=2,
        group_size=4,
    )
    return Reinforcement(
        settings=settings,
        team=team,
        prompts=prompts,
        sampler=RankSampler(collaborators=Collaborators(team=team, judge=LongWords())),
        reward=rewards,
        least_scored_share=0.5,
    )


def snapshot(weights):
    named = role_parameters(weights.causal_lm.model, weights.adapter)
    return {name: parameter.detach().clone() for name, parameter in named}


def moved(before, weights):
    after = snapshot(weights)
    return any(not torch.equal(after[name], old) for name, old in before.items())


@everywhere
@pytest.mark.parametrize("layout", [two_models, two_adapters])
@pytest.mark.parametrize("learns", [("feedback",), ROLES])
def test_a_step_moves_the_roles_that_learn_and_nothing_else(place, layout, learns):
    team = layout(place, torch.bfloat16)
    model = team.roles["conversation"].reference.causal_lm.model
    assert sum(parameter.numel() for parameter in model.parameters()) >= place.parameters
    stage = reinforcement(team, learns)
    learners = {
        role: Learner(team.weights[role], stage.settings.optimizer, 10, torch.bfloat16)
        for role in learns
    }
    before = {role: snapshot(team.weights[role]) for role in ROLES}
    frozen = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if not any(f".{role}." in name for role in ROLES)
    }
    measured = asyncio.run(stage.step(0, learners))
    assert all(measured[f"gradient/{role}_norm"] > 0 for role in learns)
    assert {role for role in ROLES if moved(before[role], team.weights[role])} == set(learns)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
