import os
import subprocess
import sys

CODE = """
import resource
import torch
from waltzrl.policies.compute import ComputeSettings, resolve_compute

resolve_compute(ComputeSettings(device="cpu", threads=1))
torch.ones(2**25)  # 128 MiB, freed at once
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
torch.ones(2**24)  # 64 MiB: 16,384 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages_asked_of_the_kernel(**environment):
    inherited = {name: os.environ[name] for name in os.environ if not name.startswith("MALLOC_")}
    ended = subprocess.run(
        [sys.executable, "-c", CODE],
        env=inherited | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(ended.stdout)


def test_memory_that_a_step_frees_is_kept_for_the_next():
    assert pages_asked_of_the_kernel() < 1000


def test_what_the_environment_says_of_malloc_is_left_alone():
    assert pages_asked_of_the_kernel(MALLOC_TOP_PAD_="0") > 16_000
