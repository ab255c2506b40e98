"""Safetensors files of which every rank writes, and reads, only the rows that it holds.

The file has all tensors whole, one after the other, and is the same for any number of ranks: what
some wrote, one process reads, or another number of them. A part of a tensor is a range of its rows,
and so of its bytes. On several machines all ranks see one file system.

`torch.distributed.checkpoint` would do the same with one file for each rank: with metadata that is
a pickle, or with safetensors that only it can read.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from waltzrl.training import ranks

KINDS = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}
"""Names of types in a safetensors file."""


def has_parts(tensors: Iterable[Tensor]) -> bool:
    """Return whether a rank holds only a part of any."""
    return any(isinstance(tensor, DTensor) for tensor in tensors)


def save_parts(file: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors together with the other ranks; what is whole, the first one writes.

    Args:
        file: the same one for every rank; it does not exist.
        tensors: by name; all ranks give the same names in the same order.

    Raises:
        OSError: the disk is full.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    starts: dict[str, int] = {}
    size = 0
    for name, tensor in sorted(tensors.items()):
        starts[name] = size
        size += tensor.numel() * tensor.itemsize
        shape, offsets = list(tensor.shape), [starts[name], size]
        header[name] = {"dtype": KINDS[tensor.dtype], "shape": shape, "data_offsets": offsets}
    text = json.dumps(header, separators=(",", ":")).encode()
    # Readers map the file into memory, so the tensors begin at a multiple of 8 bytes.
    text = text.ljust(-(-len(text) // 8) * 8)
    begin = 8 + len(text)
    if ranks.is_first():
        with file.open("wb") as whole:
            whole.write(len(text).to_bytes(8, "little") + text)
            whole.truncate(begin + size)
    # No rank may write before the file has its whole length.
    ranks.wait_for_all()
    # Without O_TRUNC, which would delete what other ranks have written.
    with os.fdopen(os.open(file, os.O_WRONLY), "wb") as shared:
        for name, tensor in tensors.items():
            if not isinstance(tensor, DTensor) and not ranks.is_first():
                continue
            # Of the whole tensor: the shape of a DTensor is that of all ranks together.
            rows = tensor.shape[0] if tensor.dim() else 1
            row_bytes = tensor.numel() * tensor.itemsize // max(1, rows)
            shared.seek(begin + starts[name] + _own_rows(tensor)[0] * row_bytes)
            own = _local(tensor).cpu().contiguous().reshape(-1)
            shared.write(own.view(torch.uint8).numpy().data)
        shared.flush()
        os.fsync(shared.fileno())
    ranks.wait_for_all()


@torch.no_grad()
def copy_own_rows(tensor: Tensor, whole: Tensor) -> None:
    """Copy from a whole tensor, or the slices of one in a file, what this rank holds."""
    first, end = _own_rows(tensor)
    _local(tensor).copy_(whole[first:end] if isinstance(tensor, DTensor) else whole[...])


def _own_rows(tensor: Tensor) -> tuple[int, int]:
    """Return the first row that this rank holds, and the one after the last."""
    if not isinstance(tensor, DTensor):
        return 0, tensor.shape[0] if tensor.dim() else 1
    assert tensor.placements == (Shard(0),), "FSDP splits rows"
    rows, count = tensor.shape[0], tensor.device_mesh.size()
    # FSDP splits rows as `torch.chunk` does: the last ranks may have fewer, or none.
    first = min(rows, tensor.device_mesh.get_local_rank() * -(-rows // count))
    return first, first + tensor.to_local().shape[0]


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local().detach() if isinstance(tensor, DTensor) else tensor.detach()
