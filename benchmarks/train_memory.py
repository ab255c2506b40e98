"""The peak of memory of training steps, measured, against what `waltzrl train --dry-run` plans.

    python benchmarks/train_memory.py

Each case is a process of its own, which takes two steps of both agents on a CPU (the second one has
an optimiser with a state) with random weights. Measured is the highest resident memory, less what
was resident before the models were made. The processes give freed blocks back at once (FREEING), as
a run otherwise keeps them; `--case NAME` measures one case as the environment says.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from train_gpu import reinforcement
from transformers import Qwen2Config, Qwen2ForCausalLM
from work import PROMPT_TOKENS, new_tokenizer

from waltzrl.agents import load_wording
from waltzrl.policies.blocks import fuse
from waltzrl.policies.compute import Compute
from waltzrl.policies.weights import CausalLM
from waltzrl.training import ROLES, AgentSettings, Learner, ModelSettings, OptimizerSettings
from waltzrl.training.models import make_roles
from waltzrl.training.plan import DataSize, plan_run

NEW_TOKENS = 64
FREEING = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model, and how it learns."""

    hidden: int
    layers: int
    vocabulary: int
    layout: str
    micro_batch_tokens: int
    checkpoint_activations: bool = False

    @property
    def config(self) -> Qwen2Config:
        return Qwen2Config(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.hidden * 3,
            num_hidden_layers=self.layers,
            num_attention_heads=self.hidden // 64,
            num_key_value_heads=self.hidden // 128,
            tie_word_embeddings=True,
            eos_token_id=self.vocabulary,  # no reply ends early
        )


CASES = {
    "small": Case(
        hidden=256, layers=6, vocabulary=2048, layout="two-models", micro_batch_tokens=4096
    ),
    "medium": Case(
        hidden=384, layers=10, vocabulary=16_384, layout="adapters", micro_batch_tokens=4096
    ),
    "large": Case(
        hidden=640,
        layers=10,
        vocabulary=16_384,
        layout="two-models",
        micro_batch_tokens=2048,
        checkpoint_activations=True,
    ),
}


def resident(field: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(case: Case) -> dict[str, float]:
    """Take two steps in this process; return measured and planned bytes."""
    torch.manual_seed(0)
    torch.nn.Linear(64, 64)(torch.zeros(64, 64)).sum().backward()  # loads the kernels
    compute = Compute(
        device=torch.device("cpu"),
        dtype=torch.float32,
        checkpoint_activations=case.checkpoint_activations,
    )
    agents = AgentSettings(max_new_tokens=NEW_TOKENS, wording="tiny")
    tokenizer = new_tokenizer()
    with tempfile.TemporaryDirectory() as folder:
        case.config.save_pretrained(folder)
        models = ModelSettings(base=folder, layout=case.layout, rank=16)
        before = resident("VmRSS")
        base = CausalLM(model=Qwen2ForCausalLM(case.config).eval(), tokenizer=tokenizer)
        fuse(base.model)  # as `load_causal_lm` does
        parameters = sum(parameter.numel() for parameter in base.model.parameters())
        team = make_roles(models, agents, base, compute, seed=0)
        del base
        Path("/proc/self/clear_refs").write_text("5")  # start the highest anew
        stage = reinforcement(team, steps=2)
        optimizer = OptimizerSettings(
            learning_rate=1e-6, micro_batch_tokens=case.micro_batch_tokens
        )
        stage = replace(stage, settings=replace(stage.settings, optimizer=optimizer))
        learners = {
            role: Learner(
                team.weights[role],
                optimizer,
                2,
                checkpoint_activations=case.checkpoint_activations,
            )
            for role in ROLES
        }
        for step in range(2):
            asyncio.run(stage.step(step, learners))
        measured = resident("VmHWM") - before
        tags = 2 + len(load_wording("tiny").feedback_system.split())
        data = DataSize(prompts=8, prompt_tokens=PROMPT_TOKENS + tags, demonstrations=0)
        plan = plan_run(models, agents, [stage.settings], compute, data)
    assert plan.gigabytes is not None
    return {
        "parameters": parameters / 1e6,
        "models": sum(part.gigabytes for part in plan.memory),
        "update": plan.update_gigabytes,
        "rollout": plan.rollout_gigabytes,
        "planned": plan.gigabytes,
        "measured": measured / 1e9,
    }


def main() -> None:
    """Measure every case in a process of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES)
    given = parser.parse_args()
    if given.case:
        print(json.dumps(measure(CASES[given.case])))
        return
    print("case     parameters  models  update  rollout  planned  measured  planned/measured")
    for name in CASES:
        command = [sys.executable, __file__, "--case", name]
        environment = os.environ | FREEING
        out = subprocess.run(
            command, check=True, stdout=subprocess.PIPE, text=True, env=environment
        ).stdout
        row = json.loads(out.splitlines()[-1])
        print(
            f"{name:8} {row['parameters']:8.1f} M  {row['models']:6.3f}  {row['update']:6.3f}"
            f"  {row['rollout']:7.3f}  {row['planned']:7.3f}  {row['measured']:8.3f}"
            f"  {row['planned'] / row['measured']:16.2f}"
        )


if __name__ == "__main__":
    main()
