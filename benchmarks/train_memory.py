"""Resident memory of training on a CPU, phase by phase, against what `--dry-run` plans.

    python benchmarks/train_memory.py [--ranks 2] [--as-it-is] [--case NAME]

Each case is a process, or as many as there are ranks, that takes two steps of the last stage of a
recipe, in float32 on one thread. For each phase it prints the highest resident memory (VmHWM) of
any of them, all of the process included, and the processor time of the second step. GLIBC_TUNABLES
is set as `docs/training.md` says where memory is short; --as-it-is leaves the environment alone.
The last case needs `pip install '.[smollm2]'`.
"""

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from pathlib import Path
from typing import ParamSpec, TypeVar

from waltzrl.foundation.files import whole_folder
from waltzrl.policies.local import LocalPolicy
from waltzrl.training.data import rollout_prompts, training_demonstrations
from waltzrl.training.learner import Learner, Scorer
from waltzrl.training.models import create_model
from waltzrl.training.opening import join_ranks, plan_training, train
from waltzrl.training.recipe import load_recipe
from waltzrl.training.settings import ModelSize
from waltzrl.training.trainer import Progress

RECIPES = Path(__file__).parents[1] / "recipes"
CASES: dict[str, tuple[str, ModelSize | None, int]] = {
    "demo": ("tiny.toml", ModelSize(hidden=96, layers=3, heads=4, context=1024), 32),
    "middle": ("tiny.toml", ModelSize(hidden=384, layers=6, heads=6, context=1024), 8),
    "large": ("tiny.toml", ModelSize(hidden=768, layers=12, heads=12, context=1024), 8),
    "smollm2": ("smollm2.toml", None, 8),
}
"""A recipe, the size of a model with random weights in place of its base, and turns in a step."""
SETTINGS = [
    'data.prompts=["generator:train"]',
    'data.demonstrations=["generator:train"]',
    "data.held_out=[]",
    "data.validation=[]",
    "data.limit=400",
    "compute.device=cpu",
    "compute.dtype=float32",
    "compute.threads=1",
]
COMPACT = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
PHASES = ("load", "rollouts", "update")

Given = ParamSpec("Given")
Returned = TypeVar("Returned")


class Phases:
    """Notes the highest resident memory in each phase."""

    def __init__(self) -> None:
        self.peaks: dict[str, int] = {}
        self.now = PHASES[0]

    def enter(self, phase: str) -> None:
        """End the phase that is."""
        lines = Path("/proc/self/status").read_text().splitlines()
        peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
        self.peaks[self.now] = max(peak, self.peaks.get(self.now, 0))
        Path("/proc/self/clear_refs").write_text("5")  # start the highest anew
        self.now = phase

    def during(self, phase: str, function: Callable[Given, Returned]) -> Callable[Given, Returned]:
        """Return the function as a phase, which lasts until another begins."""

        @wraps(function)
        def noted(*given: Given.args, **named: Given.kwargs) -> Returned:
            if self.now != phase:
                self.enter(phase)
            return function(*given, **named)

        return noted


def make_base(name: str, folder: Path) -> None:
    """Save the case's random weights, if it has any."""
    file, size, _ = CASES[name]
    if size is None:
        return
    recipe = load_recipe(RECIPES / file, SETTINGS)
    prompts = rollout_prompts(recipe, recipe.data, training_demonstrations(recipe.data))
    texts = [message.content for prompt in prompts for message in prompt.messages]
    made = create_model(texts, size, seed=0)
    with whole_folder(folder / "base") as unfinished:
        made.model.save_pretrained(unfinished)
        made.tokenizer.save_pretrained(unfinished)


def measure(name: str, folder: Path) -> dict[str, float]:
    """Take two steps in this process; return what was planned and measured, in GB and seconds."""
    file, size, turns = CASES[name]
    recipe = load_recipe(RECIPES / file, SETTINGS)
    if size is not None:
        recipe = replace(recipe, models=replace(recipe.models, base=str(folder / "base")))
    stage = replace(recipe.reinforcements[-1], steps=2)
    stage = replace(stage, prompts_per_step=turns // stage.group_size)
    recipe = replace(recipe, stages=(stage,))
    plan = plan_training(recipe)
    phases = Phases()
    LocalPolicy._serve = phases.during("rollouts", LocalPolicy._serve)
    Scorer.score = phases.during("update", Scorer.score)
    Learner.step = phases.during("update", Learner.step)
    ended = [time.process_time()]

    def report(progress: Progress) -> None:
        ended.append(time.process_time())

    with join_ranks(recipe):
        asyncio.run(train(recipe, folder / "run", report))
        phases.enter("end")
    return {
        "models": sum(part.gigabytes for part in plan.memory),
        "rollout": plan.rollout_gigabytes,
        "activations": plan.update_gigabytes,
        "planned": plan.gigabytes or 0.0,
        **{phase: phases.peaks[phase] / 1e9 for phase in PHASES},
        "seconds": ended[2] - ended[1],
    }


def run_case(name: str, count: int, environment: Mapping[str, str]) -> dict[str, float]:
    """Run a case as one process or as several ranks; return the largest of what they measured."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as free:
        command = [sys.executable, __file__, "--case", name, "--folder", folder]
        subprocess.run([*command, "--make-base"], check=True, env=environment)
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
        free.close()
        together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count)}
        started = [
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                text=True,
                env={**environment, **together, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(count)
        ]
        said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise SystemExit(f"{name}: a rank failed")
    rows: list[dict[str, float]] = [json.loads(text.splitlines()[-1]) for text in said]
    return {key: max(row[key] for row in rows) for key in rows[0]}


def main() -> None:
    """Measure every case in processes of its own and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--case", choices=CASES, help="one case only")
    parser.add_argument("--ranks", type=int, default=1, help="processes that train together")
    parser.add_argument("--as-it-is", action="store_true", help="leave the environment as it is")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--make-base", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.folder:
        if given.make_base:
            make_base(given.case, given.folder)
        else:
            print(json.dumps(measure(given.case, given.folder)))
        return
    print("            planned GB                               measured GB")
    print(
        "case        models  rollout  update    peak          load  rollouts  update"
        "   planned/measured  seconds a step"
    )
    for name in [given.case] if given.case else CASES:
        environment = os.environ | ({} if given.as_it_is else COMPACT)
        row = run_case(name, given.ranks, environment)
        ratio = row["planned"] / max(row[phase] for phase in PHASES)
        print(
            f"{name:10} {row['models']:7.3f}  {row['rollout']:7.3f} {row['activations']:7.3f}"
            f" {row['planned']:7.3f}       {row['load']:7.3f}   {row['rollouts']:7.3f}"
            f" {row['update']:7.3f} {ratio:18.2f} {row['seconds']:15.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
