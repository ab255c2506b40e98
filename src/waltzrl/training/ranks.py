"""The processes that train together: what each does, and what they tell each other.

`torchrun --nproc-per-node N -m waltzrl train RECIPE` starts N of them, of ranks 0 to N-1. Without
torchrun there is one, and nothing here does anything. Every rank must call the functions that
exchange values, in the same order.
"""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from itertools import pairwise
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor

from waltzrl.errors import RankError

Item = TypeVar("Item")

TIMEOUT = timedelta(minutes=30)
"""The longest wait of a rank for the others; longer than the rollouts of one may take."""
LOST = ("gloo", "NCCL", "Connection closed", "Connection reset", "Broken pipe", "Timed out")
"""Words in torch's errors when another rank has ended or does not answer."""


@contextmanager
def join_ranks(device: torch.device) -> Iterator[None]:
    """Join the ranks that torchrun started, for the duration of the block.

    Args:
        device: where the models are; each rank of a machine uses a GPU of its own.

    Raises:
        RankError: another rank ended, or did not answer in time.
    """
    if count_started() == 1:
        yield
        return
    backend = "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
        # NCCL reduces what is on GPUs, gloo what is on the CPU.
        backend = "cpu:gloo,cuda:nccl"
    try:
        dist.init_process_group(backend, timeout=TIMEOUT)
        yield
    except RuntimeError as error:
        # torch raises RuntimeError for much else, so only the words tell.
        if not any(words in str(error) for words in LOST):
            raise
        raise RankError(
            f"rank {os.environ['RANK']} lost another rank, which ended or did not answer in"
            f" {TIMEOUT}; see its error, and run the same command again to resume"
        ) from error
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def count_started() -> int:
    """Return how many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def count_ranks() -> int:
    """Return how many ranks have joined; 1 in a process of its own."""
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    """Return the number of this process, from 0."""
    return dist.get_rank() if dist.is_initialized() else 0


def is_first() -> bool:
    """Return whether this process is the one that writes and prints."""
    return rank() == 0


def device() -> torch.device:
    """Return where a rank that has joined computes."""
    return torch.device("cuda" if "nccl" in dist.get_backend_config() else "cpu")


def share_out(items: Sequence[Item], count: int) -> list[Sequence[Item]]:
    """Return `count` shares of about as many items, each of items that stand together."""
    ends = [len(items) * number // count for number in range(count + 1)]
    return [items[first:end] for first, end in pairwise(ends)]


def gather_items(items: Sequence[Item]) -> list[Item]:
    """Return the items of all ranks, in their order: the reverse of `share_out`."""
    if count_ranks() == 1:
        return list(items)
    of_ranks: list[Sequence[Item] | None] = [None] * count_ranks()
    dist.all_gather_object(of_ranks, items)
    return [item for own in cast("list[Sequence[Item]]", of_ranks) for item in own]


def ask_first(find: Callable[[], Item]) -> Item:
    """Return what the first rank finds; the others do not look."""
    if count_ranks() == 1:
        return find()
    shared = [find() if is_first() else None]
    dist.broadcast_object_list(shared)
    return cast("Item", shared[0])


async def in_thread(compute: Callable[[], Item]) -> Item:
    """Return what `compute` returns from a thread, which uses the GPU of this rank."""
    gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def on_own_gpu() -> Item:
        if gpu is not None:  # a new thread would use the machine's first
            torch.cuda.set_device(gpu)
        return compute()

    return await asyncio.to_thread(on_own_gpu)


@contextmanager
def first_before_others() -> Iterator[None]:
    """Let the others run the block after the first rank, whose files they then find."""
    if not is_first():
        dist.barrier()
    yield
    if is_first():
        wait_for_all()


def wait_for_all() -> None:
    """Wait until every rank is here."""
    if count_ranks() > 1:
        dist.barrier()


def add_up(values: Tensor) -> Tensor:
    """Return the sum of the ranks' tensors."""
    return _reduce_over_ranks(values, dist.ReduceOp.SUM)


def find_largest(values: Tensor) -> Tensor:
    """Return the largest of the ranks' tensors, element by element."""
    return _reduce_over_ranks(values, dist.ReduceOp.MAX)


def _reduce_over_ranks(values: Tensor, operation: dist.ReduceOp.RedOpType) -> Tensor:
    if count_ranks() > 1:
        dist.all_reduce(values, operation)
    return values
