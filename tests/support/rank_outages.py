"""A run of several ranks whose first one loses the servers that sample for all."""

import asyncio
import sys

import torch

from support import tiny_pair
from waltzrl.errors import ScoringError
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.training import ranks
from waltzrl.training.rewards import paper_rewards
from waltzrl.training.rollouts import Collaborators, ServerSampler
from waltzrl.training.settings import CheckpointSettings, OptimizerSettings, ReinforcementStage
from waltzrl.training.stages import Reinforcement
from waltzrl.training.trainer import Trainer


class LostServers(LabelRefusalJudge):
    """Servers, and the judge of what they sample, that are lost after the first step."""

    def __init__(self, during):
        super().__init__()
        self.during, self.done = during, 0

    async def publish(self, done, learned):
        self.done = done
        self.lose("publish")

    async def judge(self, prompt, reply):
        self.lose("sample")
        return await super().judge(prompt, reply)

    def lose(self, during):
        if (during, self.done) == (self.during, 1):
            raise ScoringError("no server is left")


def main(folder, during):
    """Train until the servers are lost, and write what each rank is told."""
    torch.set_num_threads(1)
    with ranks.join_ranks(torch.device("cpu")):
        team, servers = tiny_pair.adapters(), LostServers(during)
        sampler = ServerSampler(
            collaborators=Collaborators(team=team, judge=servers),
            servers=servers if ranks.is_first() else None,
        )
        stage = Reinforcement(
            settings=ReinforcementStage(
                kind="reinforcement",
                name="joint",
                learns=("feedback",),
                steps=3,
                prompts_per_step=2,
                optimizer=OptimizerSettings(learning_rate=1e-2),
            ),
            team=team,
            prompts=tiny_pair.prompts(),
            sampler=sampler,
            reward=paper_rewards,
            least_scored_share=0.5,
        )
        keeping = CheckpointSettings(checkpoint_every=100, kl_limit=50.0)
        trainer = Trainer(team.weights, [stage], folder, keeping, sampler=sampler)
        try:
            asyncio.run(trainer.train(lambda progress: None))
        except ScoringError as error:
            sys.stderr.write(f"{error}\n")
