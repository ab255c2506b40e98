"""Training steps of both agents at 0.5 billion parameters: tokens a second, memory, utilisation.

    python benchmarks/train_gpu.py [--device cpu --size tiny] [--steps 4]

Each step drafts, reviews, judges and updates both agents, with random weights in the shape of
Qwen2.5-0.5B, in two layouts: two full models (float32 weights, bfloat16 arithmetic) and two LoRA
adapters on one bfloat16 base. The first step of each layout warms up and is not counted.
"""

import argparse
import asyncio
import copy
import resource
import statistics
import subprocess
import time
from functools import partial

import torch
from train_waltzrl import LastWord
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from work import new_prompts, new_tokenizer

from waltzrl.agents import load_wording
from waltzrl.collaboration import collaborate
from waltzrl.policies.weights import CausalLM, Weights, add_adapters, narrow
from waltzrl.records import Message, Prompt
from waltzrl.training import (
    ROLES,
    Learner,
    OptimizerSettings,
    Reinforcement,
    ReinforcementStage,
    ReinforceSettings,
    Team,
    make_team,
)
from waltzrl.training.reinforce import reinforce
from waltzrl.training.rewards import STAGE_1, paper_rewards
from waltzrl.training.rewards.balance import ClassFrequencies
from waltzrl.training.rollouts import conversation_samples, feedback_samples

SIZES = {
    "half-billion": Qwen2Config(
        vocab_size=151_936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=25,  # one more than Qwen2.5-0.5B, which has only 494 million
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
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
    ),
}
NEW_TOKENS = {"half-billion": 256, "tiny": 16}


def new_base(size: str, device: torch.device) -> CausalLM:
    """Make a model with random weights, and a tokenizer for it."""
    torch.manual_seed(0)
    tokenizer: PreTrainedTokenizerFast = new_tokenizer()
    return CausalLM(model=Qwen2ForCausalLM(SIZES[size]).to(device).eval(), tokenizer=tokenizer)


def two_models(base: CausalLM, max_new_tokens: int) -> Team:
    """Give each role a model of its own; the base stays as the reference."""
    weights = {
        role: Weights(causal_lm=CausalLM(model=copy.deepcopy(base.model), tokenizer=base.tokenizer))
        for role in ROLES
    }
    references = dict.fromkeys(ROLES, Weights(causal_lm=base))
    return make_team(weights, references, load_wording("plain"), max_new_tokens, torch.bfloat16)


def two_adapters(base: CausalLM, max_new_tokens: int) -> Team:
    """Give each role an adapter on the base."""
    narrow(base.model, torch.bfloat16)
    shared = add_adapters(base, ROLES, rank=16)
    weights = {role: Weights(causal_lm=shared, adapter=role) for role in ROLES}
    references = dict.fromkeys(ROLES, Weights(causal_lm=shared))
    return make_team(weights, references, load_wording("plain"), max_new_tokens, torch.bfloat16)


def reinforcement(team: Team, steps: int) -> Reinforcement:
    """Plan steps of both agents on 32 rollouts each."""
    prompts = [
        Prompt(id=str(number), messages=(Message(role="user", content=text),))
        for number, text in enumerate(new_prompts())
    ]
    reward = partial(paper_rewards, coefficients=STAGE_1)
    return Reinforcement(
        settings=ReinforcementStage(
            kind="reinforcement",
            name="benchmark",
            learns=ROLES,
            steps=steps,
            optimizer=OptimizerSettings(learning_rate=1e-6),
            prompts_per_step=8,
            group_size=4,
        ),
        team=team,
        prompts=prompts,
        judge=LastWord(),
        pattern=partial(collaborate, reviewer=team.feedback),
        samples={
            "conversation": conversation_samples,
            "feedback": partial(feedback_samples, reward=reward, frequencies=ClassFrequencies({})),
        },
        algorithm=partial(reinforce, settings=ReinforceSettings()),
        least_scored_share=1.0,
    )


class CudaMeter:
    """Memory by the allocator, utilisation by `nvidia-smi`."""

    def __init__(self) -> None:
        torch.cuda.reset_peak_memory_stats()
        query = ["nvidia-smi", "--query-gpu=utilization.gpu", "--format=csv,noheader,nounits"]
        self._samples = subprocess.Popen(
            [*query, "--loop-ms=200"], stdout=subprocess.PIPE, text=True
        )

    def read(self) -> tuple[float, float]:
        """Return the peak of memory in GiB and the mean utilisation in percent."""
        self._samples.terminate()
        output, _ = self._samples.communicate()
        used = [float(line) for line in output.splitlines() if line.strip().isdigit()]
        return torch.cuda.max_memory_allocated() / 2**30, statistics.fmean(used or [0.0])


class CpuMeter:
    """Memory and utilisation of this process by the operating system."""

    def __init__(self) -> None:
        self._wall, self._busy = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return the peak of memory in GiB and the mean utilisation of its threads in percent."""
        wall, busy = time.perf_counter() - self._wall, time.process_time() - self._busy
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        return peak, 100 * busy / wall / torch.get_num_threads()


METERS = {"cuda": CudaMeter, "cpu": CpuMeter}


def measure(name: str, team: Team, steps: int) -> None:
    """Take the steps and print a line."""
    stage = reinforcement(team, steps + 1)
    learners = {
        role: Learner(own, stage.optimizer, stage.steps, torch.bfloat16)
        for role, own in team.weights.items()
    }
    asyncio.run(stage.step(0, learners))
    device = team.roles["conversation"].reference.causal_lm.model.device.type
    meter = METERS[device]()
    measured = [asyncio.run(stage.step(1 + n, learners)) for n in range(steps)]
    memory, utilisation = meter.read()
    rollout, update, sampled = (
        sum(step[key] for step in measured)
        for key in ("time/rollout_seconds", "time/update_seconds", "tokens/sampled")
    )
    print(
        f"{name:12} {sampled / (rollout + update):9.0f} tokens/s"
        f"  (rollout {sampled / rollout:.0f}, update {sampled / update:.0f})"
        f"  {memory:.1f} GiB  {utilisation:.0f} % busy"
    )


def main() -> None:
    """Measure both layouts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda", choices=METERS)
    parser.add_argument("--size", default="half-billion", choices=SIZES)
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    device = torch.device(given.device)
    for layout in (two_models, two_adapters):
        base = new_base(given.size, device)
        parameters = sum(parameter.numel() for parameter in base.model.parameters())
        print(f"{layout.__name__}: {parameters / 1e6:.1f} M parameters, torch {torch.__version__}")
        measure(layout.__name__, layout(base, NEW_TOKENS[given.size]), given.steps)


if __name__ == "__main__":
    main()
