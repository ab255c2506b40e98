import os
import subprocess
import sys
from pathlib import Path

import pytest

from waltzrl.policies.compute import multiplies_bfloat16

SERVING = """
import resource
import torch

torch.set_num_threads(1)
"""
KEEPING = """
import resource
import torch
from waltzrl.policies.compute import keep_freed_memory

torch.set_num_threads(1)
keep_freed_memory()
"""
TRAINING = """
import resource
import torch
from support.tiny_models import tiny_model
from waltzrl.policies.weights import Weights
from waltzrl.training.learner import Learner
from waltzrl.training.settings import OptimizerSettings

torch.set_num_threads(1)
settings = OptimizerSettings(learning_rate=1e-3)
Learner(Weights(causal_lm=tiny_model("llama")), settings, total_steps=1)
"""
ALLOCATION = """
torch.ones(2**25)  # 128 MiB, freed at once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)  # 64 MiB: 16,384 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_asked_of_the_kernel(code, **environment):
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("MALLOC_")}
    ended = subprocess.run(
        [sys.executable, "-c", code + ALLOCATION],
        cwd=Path(__file__).parents[1],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(ended.stdout)


@pytest.mark.promise("Training", "On a CPU, freed memory is kept for the next step")
def test_memory_that_a_step_frees_is_kept_for_the_next():
    assert pages_asked_of_the_kernel(TRAINING) < 1000


@pytest.mark.parametrize(
    ("code", "environment"),
    [
        pytest.param(SERVING, {}, id="a process that does not train"),
        pytest.param(KEEPING, {"MALLOC_TOP_PAD_": "0"}, id="settings of malloc's own"),
    ],
)
def test_otherwise_freed_memory_goes_back_to_the_kernel(code, environment):
    assert pages_asked_of_the_kernel(code, **environment) > 16_000


HALF = """
from waltzrl.policies.compute import ComputeSettings, resolve_compute
for _ in range(2):
    resolve_compute(ComputeSettings(device="cpu", dtype="bfloat16"))
"""


def test_bfloat16_on_a_cpu_without_instructions_for_it_is_warned_of_once():
    ended = subprocess.run([sys.executable, "-c", HALF], capture_output=True, text=True, check=True)
    warned = 0 if multiplies_bfloat16() else 1
    assert ended.stderr.count("set compute.dtype=float32") == warned


def test_torch_knows_the_instructions_that_linux_lists():
    flags = set(Path("/proc/cpuinfo").read_text().split())
    assert multiplies_bfloat16() == bool(flags & {"avx512_bf16", "amx_bf16", "bf16"})
