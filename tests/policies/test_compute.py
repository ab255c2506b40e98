import resource

import torch

from waltzrl.policies.compute import ComputeSettings, resolve_compute


def page_faults():
    """Allocate, fill and free 64 MiB; return how many pages were asked of the kernel."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_memory_that_a_step_frees_is_kept_for_the_next(monkeypatch):
    for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"):
        monkeypatch.delenv(name, raising=False)
    resolve_compute(ComputeSettings(device="cpu", threads=torch.get_num_threads()))
    torch.ones(2**25)  # freed at once; what is smaller fits into it
    assert page_faults() < 1000  # of 16,384
