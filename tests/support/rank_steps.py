"""Steps of a role on samples that never change, alone or as one of several ranks."""

import json
from dataclasses import asdict
from functools import partial

import torch

from support import tiny_pair
from waltzrl.records import Tokens
from waltzrl.training import ranks
from waltzrl.training.checkpoints import load_checkpoint, save_checkpoint
from waltzrl.training.learner import Learner
from waltzrl.training.reinforce import reinforce
from waltzrl.training.samples import Sample
from waltzrl.training.settings import OptimizerSettings, ReinforceSettings
from waltzrl.training.trainer import role_states

LAYOUTS = {
    "two-models": tiny_pair.two_models,
    "two-models, split references": partial(tiny_pair.two_models, replays=False),
    "adapters": tiny_pair.adapters,
    "one-model": tiny_pair.one_model,
}
SETTINGS = OptimizerSettings(learning_rate=1e-2, warmup_steps=0, micro_batch_tokens=20)
TURNS = (
    ((5, 6, 7), (10, 11, 12), 1.0),
    ((5, 6, 7), (20, 21), 0.0),
    ((8, 9), (30, 31, 32, 33), 1.0),
    ((8, 9, 10, 11, 12, 13), (30,), 0.0),
    ((8, 9, 10, 11, 12), (31, 9), 0.0),
)
ROLE = "feedback"


class Steps:
    """A role that learns, and its checkpoints."""

    def __init__(self, layout):
        self.team = LAYOUTS[layout]()
        self.learner = Learner(self.team.weights[ROLE], SETTINGS, 9)
        self.states = role_states(self.team.weights, {ROLE: self.learner})

    def load(self, path):
        load_checkpoint(path, self.states)

    def save(self, folder, step):
        return save_checkpoint(folder, step, self.states, {})

    def take(self):
        """Take a step of two passes; return what it measured."""
        bare = [Sample(tokens=Tokens(prompt_ids=p, ids=i, logprobs=())) for p, i, _ in TURNS]
        logprobs = self.learner.scorer.score(bare)
        samples = [
            Sample(tokens=Tokens(prompt_ids=p, ids=i, logprobs=tuple(own)), score=score)
            for (p, i, score), own in zip(TURNS, logprobs, strict=True)
        ]
        reference = self.learner.scorer.with_weights(self.team.roles[ROLE].reference)
        return reinforce(
            self.learner, samples, reference, ReinforceSettings(kl_weight=0.1, passes=2)
        )


def flat(measured):
    """Return what an update measured as one table."""
    table = asdict(measured)
    return table | table.pop("ratio")


def main(folder):
    """Continue the step that one process took, and write what the first rank measures."""
    torch.set_num_threads(1)
    with ranks.join_ranks(torch.device("cpu")):
        for layout in LAYOUTS:
            steps = Steps(layout)
            steps.load(folder / layout / "step-000001")
            steps.save(folder / layout / "resharded", 1)
            measured = steps.take()
            steps.save(folder / layout, 2)
            if ranks.is_first():
                (folder / layout / "measured.json").write_text(json.dumps(flat(measured)))
