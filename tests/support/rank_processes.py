"""Processes that train together, started as torchrun starts them, without its own process."""

import os
import socket
from contextlib import ExitStack, contextmanager, suppress

from support.forked import Forked


@contextmanager
def started(count, function, *arguments):
    """Call a function in ranks 0 to count-1; they are killed at the end of the block."""
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    together = os.environ | address | {"WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                Forked(
                    function,
                    *arguments,
                    environment=together | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )
            for rank in range(count)
        ]


def _free_port():
    """Return a port that the system gives to nobody of itself, and no other test process tries."""
    for port in range(20_000 + os.getpid() * 8 % 10_000, 32_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("need a free port between 20,000 and 32,000")


def finished(processes):
    """Wait for all; return their exit codes and what they wrote to stderr."""
    said = [process.stderr.read().decode() for process in processes]
    return [process.wait(120) for process in processes], said
