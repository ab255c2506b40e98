"""Rollouts on servers and rollouts in this process, on the same samples, teach the same."""

import asyncio
import json
from functools import partial

import pytest
import torch

from support import tiny_pair
from support.vllm_server import serving
from waltzrl.agents.exports import ROLES
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.policies.decode import Ask, decode
from waltzrl.policies.vllm import Sampled, VllmPolicy, VllmServers
from waltzrl.policies.weights import activate_adapter
from waltzrl.training.rewards import paper_rewards
from waltzrl.training.rollouts import Collaborators, RankSampler, ServerSampler
from waltzrl.training.samples import Sample
from waltzrl.training.settings import CheckpointSettings, OptimizerSettings, ReinforcementStage
from waltzrl.training.stages import Reinforcement
from waltzrl.training.trainer import Trainer


class InProcess:
    """Samples in this process what servers are asked, with the seeds that they are given."""

    def __init__(self, causal_lm):
        self.causal_lm = causal_lm

    async def sample(self, adapter, request):
        ask = Ask(
            prompt=tuple(request["prompt"]), limit=request["max_tokens"], seed=request["seed"]
        )
        with activate_adapter(self.causal_lm.model, adapter) as model:
            chance, ends = request["temperature"], self.causal_lm.end_ids
            decoded = decode(model, [ask], chance, ends, torch.Generator())[0]
        return Sampled(
            version="", ids=decoded.ids, logprobs=decoded.logprobs, finish=decoded.finish
        )


class FirstTurns(Reinforcement):
    """Learns from drafts and from the first reviews."""

    def take_samples(self, role, rollouts, draw):
        if role == "feedback":
            return [scored(r.judged.collaboration.rounds[0].feedback.reply) for r in rollouts]
        return [scored(r.judged.collaboration.draft) for r in rollouts if not r.replayed]


def scored(reply):
    """Score a reply by its tokens: random weights write none that a judge prefers."""
    return Sample(tokens=reply.tokens, score=float(sum(reply.tokens.ids) % 5))


def asking(policy, team):
    return Collaborators(team=team.sampled_by(policy), judge=LabelRefusalJudge())


async def trained(team, sampler, folder):
    """Train three steps; return the metrics of each and the final weights."""
    stage = FirstTurns(
        settings=ReinforcementStage(
            kind="reinforcement",
            name="joint",
            learns=ROLES,
            steps=3,
            prompts_per_step=6,
            replayed_share=0.2,
            optimizer=OptimizerSettings(learning_rate=1e-2, warmup_steps=0),
        ),
        team=team,
        prompts=tiny_pair.prompts(),
        sampler=sampler,
        reward=paper_rewards,
        least_scored_share=0.5,
    )
    folder.mkdir()
    keeping = CheckpointSettings(kl_limit=50.0)
    trainer = Trainer(team.weights, [stage], folder, keeping, sampler=sampler)
    await trainer.train(lambda progress: None)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    parameters = dict(team.weights["feedback"].causal_lm.model.named_parameters())
    return lines, {name: value.detach().clone() for name, value in parameters.items()}


@pytest.mark.slow
@pytest.mark.promise(
    "Training",
    "A run learns the same from a server's samples as from the same samples in its own process",
)
def test_three_steps_on_a_server_are_those_in_this_process_on_the_same_samples(tmp_path):
    async def in_process():
        team = tiny_pair.adapters()
        policy = partial(VllmPolicy, InProcess(team.weights["feedback"].causal_lm))
        sampler = RankSampler(collaborators=asking(policy, team))
        return await trained(team, sampler, tmp_path / "here")

    async def on_server():
        team = tiny_pair.adapters()
        base, published = team.weights["feedback"].causal_lm, tmp_path / "published"
        async with VllmServers([server.url], base, published) as servers:
            sampler = ServerSampler(collaborators=asking(servers.policy, team), servers=servers)
            return await trained(team, sampler, tmp_path / "there")

    local = asyncio.run(in_process())
    with serving(tiny_pair.base()) as server:
        remote = asyncio.run(on_server())
    assert len(local[0]) == len(remote[0]) == 3
    for ours, theirs in zip(local[0], remote[0], strict=True):
        assert ours.keys() == theirs.keys()
        assert min(ours["gradient/conversation_norm"], ours["gradient/feedback_norm"]) > 1e-2
        for name in ours:
            if name.startswith(("rate/", "reward/", "length/", "tokens/")) or name == "step":
                assert theirs[name] == ours[name], name  # the same samples
            elif not name.startswith("time/"):
                assert theirs[name] == pytest.approx(ours[name], rel=1e-3, abs=1e-5), name
    for name, value in local[1].items():
        assert torch.allclose(remote[1][name], value, atol=1e-4), name
    # The learner measured how far the server's probabilities are from its own.
    assert all(line["ratio/feedback_sampler_max"] == 1.0 for line in local[0])
    maxima = [line["ratio/feedback_sampler_max"] for line in remote[0]]
    assert maxima == pytest.approx([1.0] * 3, abs=1e-3)
    versions = {name.rpartition("-")[0] for name in server.loaded}
    assert versions == {f"waltzrl-{role}-v{step}" for role in ROLES for step in range(4)}
