"""Training steps of both agents on a GPU: tokens a second, memory against the plan, utilisation.

    python benchmarks/train_gpu.py [--size half-billion] [--steps 4]
    python benchmarks/train_gpu.py --size 8b --layouts adapters
    python benchmarks/train_gpu.py --device cpu --size tiny          # the same code, anywhere

Each step drafts, reviews, judges and updates both agents, with random weights in the shape of a
known model: as two full models (float32 weights, bfloat16 arithmetic), and as two LoRA adapters on
one bfloat16 base. The first step of each layout warms up and is not counted.
"""

import argparse
import asyncio
import resource
import statistics
import subprocess
import tempfile
import time

import torch
from train_waltzrl import new_stage
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config
from work import PROMPT_TOKENS, new_tokenizer

from waltzrl.agents import load_wording
from waltzrl.agents.exports import ROLES
from waltzrl.policies.blocks import fuse_blocks
from waltzrl.policies.compute import Compute
from waltzrl.policies.weights import CausalLM
from waltzrl.training.learner import Learner
from waltzrl.training.models import make_roles
from waltzrl.training.plan import DataSize, plan_run
from waltzrl.training.settings import (
    AgentSettings,
    ModelSettings,
    OptimizerSettings,
    ReinforcementStage,
)

SIZES: dict[str, PretrainedConfig] = {
    "8b": LlamaConfig(  # Llama-3.1-8B
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        eos_token_id=128_256,  # no reply ends early
    ),
    "half-billion": Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=25,  # one more than Qwen2.5-0.5B, which has only 494 million
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=151_936,
    ),
    "tiny": Qwen2Config(
        vocab_size=4096,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=4096,
    ),
}
NEW_TOKENS = {"8b": 256, "half-billion": 256, "tiny": 16}
LAYOUTS = ("two-models", "adapters")


def new_base(size: str, device: torch.device) -> CausalLM:
    """Make a model with random weights on the device, and a tokenizer for it."""
    torch.manual_seed(0)
    with device:
        model = AutoModelForCausalLM.from_config(SIZES[size], dtype=torch.float32).eval()
    fuse_blocks(model)  # as `load_causal_lm` does
    return CausalLM(model=model, tokenizer=new_tokenizer())


class CudaMeter:
    """Memory by the allocator, utilisation by `nvidia-smi`."""

    def __init__(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        self._samples = subprocess.Popen(
            [*query, "--loop-ms=200"], stdout=subprocess.PIPE, text=True
        )

    def read(self) -> tuple[float, float]:
        """Return the peak of memory in GB and the mean utilisation in percent."""
        self._samples.terminate()
        output, _ = self._samples.communicate()
        used = [float(line) for line in output.splitlines() if line.strip().isdigit()]
        return torch.cuda.max_memory_allocated() / 1e9, statistics.fmean(used or [0.0])


class CpuMeter:
    """Memory and utilisation of this process by the operating system."""

    def __init__(self) -> None:
        self._wall, self._busy = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return the peak of memory in GB and the mean utilisation of its threads in percent."""
        wall, busy = time.perf_counter() - self._wall, time.process_time() - self._busy
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
        return peak, 100 * busy / wall / torch.get_num_threads()


METERS = {"cuda": CudaMeter, "cpu": CpuMeter}


def measure(size: str, layout: str, device: torch.device, steps: int) -> None:
    """Take the steps in one layout and print a line."""
    compute = Compute(device=device, dtype=torch.bfloat16)
    agents = AgentSettings(max_new_tokens=NEW_TOKENS[size])
    with tempfile.TemporaryDirectory() as folder:
        SIZES[size].save_pretrained(folder)
        models = ModelSettings(base=folder, layout=layout, rank=16)
        base = new_base(size, device)
        team = make_roles(models, agents, base, compute, seed=0)
        del base
        settings = ReinforcementStage(
            kind="reinforcement",
            name="benchmark",
            learns=ROLES,
            steps=steps + 1,
            optimizer=OptimizerSettings(learning_rate=1e-6),
            prompts_per_step=8,
            group_size=4,
        )
        stage = new_stage(team, settings)
        instructions = len(load_wording(agents.wording).feedback_system.split())
        prompts = (PROMPT_TOKENS,) * stage.settings.prompts_per_step
        data = DataSize(prompt_tokens=prompts, instruction_tokens=instructions, demonstrations=0)
        plan = plan_run(models, agents, [stage.settings], compute, data)
    learners = {
        role: Learner(own, stage.settings.optimizer, stage.steps, compute.dtype)
        for role, own in team.weights.items()
    }
    asyncio.run(stage.step(0, learners))
    meter = METERS[device.type]()
    measured = [asyncio.run(stage.step(1 + n, learners)) for n in range(steps)]
    memory, utilisation = meter.read()
    rollout, update, sampled = (
        sum(step[key] for step in measured)
        for key in ("time/rollout_seconds", "time/update_seconds", "tokens/sampled")
    )
    print(
        f"{layout:12} {sampled / (rollout + update):9.0f} tokens/s"
        f"  (rollout {sampled / rollout:.0f}, update {sampled / update:.0f})"
        f"  {memory:.1f} GB, planned {plan.gigabytes:.1f}  {utilisation:.0f} % busy",
        flush=True,
    )


def main() -> None:
    """Measure the layouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=METERS)
    parser.add_argument("--size", default="half-billion", choices=SIZES)
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, choices=LAYOUTS)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    for layout in given.layouts:
        measure(given.size, layout, torch.device(given.device), given.steps)


if __name__ == "__main__":
    main()
