"""Processes that train together, started as torchrun starts them, without its own process."""

import os
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

TESTS = Path(__file__).parent.parent


@contextmanager
def started(count, *command):
    """Start `python COMMAND` as ranks 0 to count-1; they are killed at the end of the block."""
    port = _free_port()
    paths = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    together = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
    with ExitStack() as stack:
        processes = []
        for rank in range(count):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                [sys.executable, *map(str, command)],
                env=os.environ | together | own | {"PYTHONPATH": paths},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.callback(_end, process)
            processes.append(process)
        yield processes


def _free_port():
    """Return a port that the system gives to nobody of itself, and no other test process tries."""
    for port in range(20_000 + os.getpid() * 8 % 10_000, 32_000):
        with socket.socket() as free, suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("need a free port between 20,000 and 32,000")


def _end(process):
    with suppress(ProcessLookupError):
        process.kill()
    process.communicate()


def finished(processes):
    """Wait for all; return their exit codes and what they wrote to stderr."""
    said = [process.communicate(timeout=120)[1] for process in processes]
    return [process.returncode for process in processes], said
