"""Device, dtype, CPU threads and memory: decided once, at the start of a process, and passed on."""

import ctypes
import logging
import os
import re
import sys
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from waltzrl.errors import InputError, RecipeError
from waltzrl.policies.remote import server_address

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

CGROUP = Path("/sys/fs/cgroup")
CGROUPS = (
    ("memory.max", "memory.stat", "anon"),
    ("memory/memory.limit_in_bytes", "memory/memory.stat", "total_rss"),
)
"""Files of a container's limit, and of its use without the page cache: of versions 2 and 1."""

VLLM = "vllm:"
"""Prefix of servers in `compute.rollouts`."""
STARTED = "vllm"
"""In `compute.rollouts`: servers that Ray starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """Which processes of a run Ray starts. Each has a GPU of its own where the cluster has any, and
    `compute.threads` CPUs, or else one.
    """

    address: str = "auto"
    """`auto` is the cluster that this machine is part of, HOST:PORT another one's head, `local` a
    Ray of this run on this machine alone."""
    learners: Annotated[int, Field(ge=1)] = 1
    """Processes that learn: the ranks, as torchrun starts them."""
    workers: Annotated[int, Field(ge=0)] = 0
    """Processes that roll out and judge, with copies of the weights, or where `rollouts` is `vllm`
    that many vLLM servers; 0: the learners do. Raise it when a step is mostly
    `time/rollout_seconds`."""
    wait_seconds: Annotated[float, Field(ge=0)] = 300.0
    """Longest wait for the resources; an autoscaler takes minutes to start a machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ComputeSettings:
    """What a recipe says about the hardware."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` is the GPU if there is one."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Of forward, backward and decoding; weights that learn are kept in float32. `auto` is bfloat16
    on a GPU and float32 on a CPU."""
    checkpoint_activations: bool = False
    """Keep only the input of each layer, and run the layers again in the backward pass: the same
    gradients in much less memory, for about a third more time in an update. Turn it on before
    lowering `micro_batch_tokens`; `waltzrl train RECIPE --dry-run` says what each saves."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads; the same number gives the same weights bit for bit. None is torch's choice."""
    rollouts: str = "local"
    """What samples the rollouts: `local` is this process; `vllm:URL,URL` are vLLM servers of the
    base, which load the adapters after each update, and `vllm` such servers that Ray starts. A run
    may be resumed with another."""
    staleness: Annotated[int, Field(ge=0, le=1)] = 0
    """How many updates older those weights may be that sampled than those that learn. With 1,
    servers or workers roll out the next step while the learners learn from this one: a step takes
    about as long as the longer of the two, and importance weights correct what is stale."""
    engine: Literal["local", "ray"] = "local"
    """What starts the processes of a run: whoever calls, or torchrun; or Ray, which replaces those
    that die. A run may be resumed with another."""
    ray: RaySettings = field(default_factory=RaySettings)

    def __post_init__(self) -> None:
        if self.rollouts not in {"local", STARTED} and not self.rollouts.startswith(VLLM):
            raise ValueError(
                f"compute.rollouts is local or {VLLM}URL,URL with the URLs of vLLM servers, or"
                f" {STARTED} on Ray, got {self.rollouts!r}"
            )
        if self.rollouts == STARTED and not self.rollout_workers:
            raise ValueError(
                "compute.rollouts = 'vllm' needs --ray and compute.ray.workers, how many servers to"
                f" start; or name servers that run: {VLLM}URL,URL"
            )
        try:
            for url in self.servers:
                server_address(url)
        except InputError as error:
            raise ValueError(f"compute.rollouts: {error}") from None
        if self.servers and self.rollout_workers:
            raise ValueError(
                f"compute.rollouts = {self.rollouts!r} and compute.ray.workers ="
                f" {self.ray.workers} both say what samples; make one of them local or 0"
            )
        if self.staleness and not (self.servers or self.rollout_workers):
            raise ValueError(
                f"compute.staleness = {self.staleness} needs something that samples while this"
                f" process learns: compute.rollouts = '{VLLM}URL,URL', or --ray with"
                " compute.ray.workers; or leave it at 0"
            )

    @property
    def rollout_workers(self) -> int:
        """How many processes beside the learners roll out."""
        return self.ray.workers if self.engine == "ray" else 0

    @property
    def servers(self) -> tuple[str, ...]:
        """The URLs of the vLLM servers that sample; none where this process does, or Ray's do."""
        if not self.rollouts.startswith(VLLM):
            return ()
        return tuple(self.rollouts.removeprefix(VLLM).split(","))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Where models live, and what they compute in."""

    device: "torch.device"
    dtype: "torch.dtype"
    checkpoint_activations: bool = False


def resolve_compute(settings: ComputeSettings) -> Compute:
    """Choose the device and the dtype, and set the number of CPU threads of this process.

    Raises:
        RecipeError: the settings need CUDA, but torch finds no GPU.
    """
    import torch

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    has_cuda = torch.cuda.is_available()
    if settings.device == "cuda" and not has_cuda:
        raise RecipeError("compute.device is cuda, but torch finds no GPU; use cpu or auto")
    on_gpu = has_cuda and settings.device != "cpu"
    half = settings.dtype == "bfloat16" or (settings.dtype == "auto" and on_gpu)
    if half and not on_gpu and not multiplies_bfloat16():
        _warn_of_slow_bfloat16()
    return Compute(
        device=torch.device("cuda" if on_gpu else "cpu"),
        dtype=torch.bfloat16 if half else torch.float32,
        checkpoint_activations=settings.checkpoint_activations,
    )


def multiplies_bfloat16() -> bool:
    """Return whether this CPU has instructions for matrix products in bfloat16."""
    import torch

    has = torch.cpu.get_capabilities()
    return any(has.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


@cache
def _warn_of_slow_bfloat16() -> None:
    logger.warning(
        "compute.dtype is bfloat16, but this CPU has no instructions for it and may take ten times"
        " as long as in float32; set compute.dtype=float32"
    )


M_MXFAST, M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = 1, -1, -3
"""Parameters of `mallopt`, from malloc.h."""


def keep_freed_memory() -> None:
    """Let glibc keep the large blocks that a training step frees, for the next step.

    To give them back and to get them again, page by page, takes a tenth of an update on a CPU, and
    more on a busy one. Blocks of 1 GiB are still given back. What `MALLOC_*` says in the
    environment stays as it is.

    The price is fragmentation, up to glibc 2.38: torch asks for aligned blocks, each leaves a
    remainder of some bytes beside it, and one that goes into a list of small blocks keeps its large
    neighbours from being joined when they are free (glibc's bug 30723). So there is no such list
    here; the other one, of each thread, can be turned off in the environment only, see
    `docs/training.md`.
    """
    if sys.platform != "linux" or any(name.startswith("MALLOC_") for name in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries have none
    if mallopt is not None:
        mallopt(M_MXFAST, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(M_MMAP_THRESHOLD, 2**30)


def require_memory(needed: int, what: str) -> None:
    """Check that `needed` bytes of memory are free, so that the kernel does not end the process.

    Raises:
        InputError: there are fewer; nothing was loaded.
    """
    free = measure_free_memory()
    if free is not None and needed > free:
        raise InputError(
            f"{what} needs {needed / 1e9:,.1f} GB of memory or more, {free / 1e9:,.1f} GB are free;"
            " end other programs, or use a larger machine or a smaller model"
        )


def measure_free_memory() -> int | None:
    """Return the bytes that this machine, or this container, has left; None if unknown."""
    free = _read_kernel_numbers(Path("/proc/meminfo"), r"^MemAvailable: +(\d+) kB")
    left = [kilobytes * 1024 for kilobytes in free]
    for limit, statistics, used in CGROUPS:
        in_use = sum(_read_kernel_numbers(CGROUP / statistics, rf"^{used} (\d+)$"))
        # Without a limit, version 2 says "max", which does not match, and version 1 a huge number.
        left += [most - in_use for most in _read_kernel_numbers(CGROUP / limit, r"^(\d+)$")]
    return min(left, default=None)


def _read_kernel_numbers(file: Path, pattern: str) -> list[int]:
    """Return the numbers that match in a file of the kernel; none where it does not exist."""
    if not file.exists():
        return []
    return [int(number) for number in re.findall(pattern, file.read_text(), re.MULTILINE)]
