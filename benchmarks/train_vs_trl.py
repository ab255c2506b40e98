"""One training step (rollout and update) of ours against TRL's GRPOTrainer.

    python benchmarks/train_vs_trl.py [--rounds 7] [--threads 1] [--device cuda]

Makes an environment of its own, `.venv-bench`. Same random weights, prompts, completions, lengths
and threads; a KL term, so both score every reply under a frozen reference too; one process per
engine, which take their steps in turn, so that other load on the machine slows all of them
equally. Each side runs in float32 and in bfloat16, because which is faster depends on the CPU's
instructions. The last line is `ratio: N`: how many times faster our faster format is than TRL's
faster one; a line before compares float32 with float32. `cpu` is the processor time of a step,
which other load disturbs less than wall time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent / "gateway"))

from environments import TORCH, make_environment

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-bench"
ENGINES = {
    "TRL float32": ["train_trl.py", "float32"],
    "TRL bfloat16": ["train_trl.py", "bfloat16"],
    "waltzrl float32": ["train_waltzrl.py", "float32"],
    "waltzrl bfloat16": ["train_waltzrl.py", "bfloat16"],
}
WARM_UP = 4
"""Steps of each engine that are not counted."""
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16")
"""Instructions, by their names in Linux, that decide which number format is faster."""


class Engine:
    """A process that takes one step at a time, on request."""

    def __init__(self, python: Path, command: Sequence[str], threads: int) -> None:
        script, *options = command
        self._process = subprocess.Popen(
            [python, ROOT / "benchmarks" / script, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"},
        )
        self.versions = self._answer()

    def step(self) -> dict[str, float]:
        """Take a step; return its seconds, by part."""
        assert self._process.stdin is not None
        print("step", file=self._process.stdin, flush=True)
        return {name: float(seconds) for name, seconds in self._answer().items()}

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def _answer(self) -> dict[str, str]:
        assert self._process.stdout is not None
        answer: dict[str, str] = json.loads(self._process.stdout.readline())
        return answer


def alternate(engines: Mapping[str, Engine], rounds: int) -> dict[str, list[dict[str, float]]]:
    """Let the engines step in turn; return the seconds of each counted step, by part."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in engines}
    for number in range(WARM_UP + rounds):
        for name, engine in engines.items():
            step = engine.step()
            if number >= WARM_UP:
                taken[name].append(step)
        load = os.getloadavg()[0]
        row = "  ".join(f"{name} {steps[-1]['step']:.2f}" for name, steps in taken.items() if steps)
        print(f"round {number - WARM_UP + 1:>2}  load {load:.1f}  {row or 'warm-up'}", flush=True)
    return taken


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1, help="of each engine")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    given = parser.parse_args()
    python = make_environment(VENV, TORCH, ["trl>=1.16", "-e", f"{ROOT}[train]"])
    engines = {
        name: Engine(python, [*command, given.device], given.threads)
        for name, command in ENGINES.items()
    }
    try:
        versions = dict(item for engine in engines.values() for item in engine.versions.items())
        waiting = os.environ.get("OMP_WAIT_POLICY", "the default")
        print(f"threads {given.threads}, OMP_WAIT_POLICY {waiting}, {versions}")
        print(f"cpu {cpu_flags()}")
        taken = alternate(engines, given.rounds)
    finally:
        for engine in engines.values():
            engine.stop()
    report(taken)


def cpu_flags() -> str:
    """Return which of `CPU_FLAGS` this machine has; unknown anywhere but on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    if not cpuinfo.exists():
        return "flags unknown"
    lines = cpuinfo.read_text().splitlines()
    flags = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    return ", ".join(f"{name} {'yes' if name in flags else 'no'}" for name in CPU_FLAGS)


def report(taken: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Print medians, and the ratios of float32 and of the two fastest."""
    medians = {
        name: {part: statistics.median(step[part] for step in steps) for part in steps[0]}
        for name, steps in taken.items()
    }
    count = len(taken["TRL float32"])
    print(f"\n{f'median of {count}':18} rollout  update    step     cpu  tokens/s")
    for name, median in medians.items():
        print(
            f"{name:18} {median['rollout']:7.2f} {median['update']:7.2f} {median['step']:7.2f}"
            f" {median['cpu']:7.2f} {median['tokens'] / median['step']:9.0f}"
        )
    exact = medians["TRL float32"], medians["waltzrl float32"]
    print(
        "float32 against float32:"
        f" {exact[0]['step'] / exact[1]['step']:.2f} by wall time,"
        f" {exact[0]['cpu'] / exact[1]['cpu']:.2f} by processor time"
    )
    theirs, ours = (
        min((name for name in medians if name.startswith(side)), key=lambda n: medians[n]["step"])
        for side in ("TRL", "waltzrl")
    )
    print(f"{ours} against {theirs}, the faster format of each")
    print(f"ratio: {medians[theirs]['step'] / medians[ours]['step']:.2f}")


if __name__ == "__main__":
    main()
