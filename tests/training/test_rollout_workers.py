"""What a rollout worker does with a call, without a cluster."""

import asyncio
from contextlib import asynccontextmanager

import pytest
import torch

from support import tiny_pair
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.training.checkpoints import weights_digest
from waltzrl.training.rollouts import Collaborators, RankSampler, RolloutPrompt, RolloutRequest
from waltzrl.training.scale.workers import RolloutWorker, load_state, state_to_send

LAYOUTS = [tiny_pair.two_models, tiny_pair.adapters, tiny_pair.one_model]
PROMPTS = [
    RolloutPrompt(prompt, replayed=number == 1)
    for number, prompt in enumerate(tiny_pair.prompts() * 2)
]
REQUEST = RolloutRequest(prompts=PROMPTS, max_rounds=1, seed=7)


def collaborators(team):
    return Collaborators(team=team, judge=LabelRefusalJudge())


def opener(team, opened):
    @asynccontextmanager
    async def open_collaborators():
        opened.append(team)
        yield collaborators(team)

    return open_collaborators


def said(outcomes):
    return [
        (reply.text, reply.tokens)
        for outcome in outcomes
        for reply in outcome.collaboration.replies
    ]


@pytest.mark.promise(
    "Evaluation",
    "A rollout worker says what a rank with the published weights says, again when it is asked "
    "again, in every layout",
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_worker_says_what_a_rank_with_the_published_weights_says(layout):
    learned, opened = layout(seed=1), []

    async def by_rank():
        return said(await RankSampler(collaborators=collaborators(learned)).sample(REQUEST))

    async def by_worker():
        loop = asyncio.get_running_loop()
        published = {role: loop.create_future() for role in learned.weights}
        for role, future in published.items():
            future.set_result(state_to_send(learned.weights[role], role, torch.float32))
        initial = layout(seed=1)  # with the same base, and adapters of its own
        for role, own in initial.weights.items():
            for name, parameter in own.causal_lm.model.named_parameters():
                if parameter.requires_grad and (own.adapter is None or role in name):
                    parameter.data.add_(0.5)
        worker = RolloutWorker(opener(initial, opened))
        first = await worker.roll_out(REQUEST, published)
        again = await worker.roll_out(REQUEST, published)
        assert said(first) == said(again)
        return said(first)

    assert asyncio.run(by_worker()) == asyncio.run(by_rank())
    assert len(opened) == 1


@pytest.mark.promise(
    "Evaluation",
    "A rollout worker says what a rank with the published weights says, again when it is asked "
    "again, in every layout",
)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_arrive_as_they_were_sent(layout):
    learned, other = layout(seed=1), layout(seed=2 if layout != tiny_pair.adapters else 1)
    for role, own in learned.weights.items():
        load_state(other.weights[role], role, state_to_send(own, role, torch.float32))
    for role, own in learned.weights.items():
        assert weights_digest(other.weights[role].causal_lm.model) == weights_digest(
            own.causal_lm.model
        )


def test_full_models_are_sent_in_the_precision_that_decodes():
    learned = tiny_pair.two_models()
    state = state_to_send(learned.weights["feedback"], "feedback", torch.bfloat16)
    assert {tensor.dtype for tensor in state.values()} == {torch.bfloat16}
    adapters = tiny_pair.adapters()
    state = state_to_send(adapters.weights["feedback"], "feedback", torch.bfloat16)
    assert {tensor.dtype for tensor in state.values()} == {torch.float32}  # merged in float32
