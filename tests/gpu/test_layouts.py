"""A step of both agents, as two full models and as two adapters on one base."""

import asyncio
import copy

import pytest
import torch

from support.places import everywhere
from waltzrl.agents import load_wording
from waltzrl.collaboration import collaborate
from waltzrl.policies.local import Decoding
from waltzrl.policies.weights import CausalLM, add_adapters, narrow, role_parameters
from waltzrl.records import Message, Prompt, Verdict
from waltzrl.training.learner import Learner, Optimizer
from waltzrl.training.pair import Weights, make_pair
from waltzrl.training.reinforce import ReinforcePlusPlus
from waltzrl.training.rewards import STAGE_1, paper_rewards
from waltzrl.training.stages import Reinforcement

ROLES = ("conversation", "feedback")


class LongWords:
    """A judge to which chance gives both verdicts."""

    name = "long-words"

    async def judge(self, prompt, reply):
        return Verdict(judge=self.name, unsafe=len(reply.text) % 2 == 0, overrefuses=False)


def two_models(place, dtype):
    def copied(causal_lm):
        return CausalLM(model=copy.deepcopy(causal_lm.model), tokenizer=causal_lm.tokenizer)

    base = place.causal_lm()
    weights = [Weights(causal_lm=model) for model in (copied(base), copied(base), base)]
    return make_pair(*weights, load_wording("tiny"), 16, Decoding(dtype=dtype))


def two_adapters(place, dtype):
    base = place.causal_lm()
    narrow(base.model, dtype)
    shared = add_adapters(base, rank=4)
    weights = [Weights(causal_lm=shared, adapter=role) for role in (*ROLES, None)]
    return make_pair(*weights, load_wording("tiny"), 16)


def reinforcement(learns):
    prompts = [
        Prompt(id=str(n), messages=(Message(role="user", content=text),))
        for n, text in enumerate(["How do I kill a process?", "Linux?"])
    ]
    return Reinforcement(
        name="joint",
        steps=10,
        learns=learns,
        prompts=prompts,
        judge=LongWords(),
        pattern=collaborate,
        feedback_reward=lambda rounds: [
            reward + (number % 2)  # random weights write no readable feedback; chance pays
            for number, reward in enumerate(paper_rewards(rounds, STAGE_1))
        ],
        optimizer=Optimizer(learning_rate=1e-3, warmup_steps=0, bf16=True),
        algorithm=ReinforcePlusPlus(),
        prompts_per_step=2,
        group_size=4,
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
    pair = layout(place, torch.bfloat16)
    model = pair.references["conversation"].causal_lm.model
    assert sum(parameter.numel() for parameter in model.parameters()) >= place.parameters
    stage = reinforcement(learns)
    learners = {
        role: Learner(pair.weights[role].causal_lm, pair.weights[role].adapter, stage.optimizer, 10)
        for role in learns
    }
    before = {role: snapshot(pair.weights[role]) for role in ROLES}
    frozen = {
        name: parameter.detach().clone()
        for name, parameter in model.named_parameters()
        if not any(f".{role}." in name for role in ROLES)
    }
    measured = asyncio.run(stage.step(0, pair, learners))
    assert all(measured[f"gradient/{role}_norm"] > 0 for role in learns)
    assert {role for role in ROLES if moved(before[role], pair.weights[role])} == set(learns)
    assert all(torch.equal(p, frozen[n]) for n, p in model.named_parameters() if n in frozen)
