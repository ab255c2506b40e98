"""Processes that import nothing slow, because they are forks of one that has imported it.

Each has its own environment, pipes and signals, like a program that was just started. Tests that
use it are of the group "forked", because every worker would import what is slow for itself.
"""

import multiprocessing
import os
import resource
import signal
import sys
from contextlib import suppress
from multiprocessing.connection import Connection
from subprocess import TimeoutExpired

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(
    [
        "peft",
        "torch._dynamo",  # the first step of an optimizer imports it
        "transformers.models.qwen2",
        "waltzrl.operations.online.recorder_opening",
        "waltzrl.training.opening",
        "waltzrl.__main__",
    ]
)


class Forked:
    """A process that calls a function; it is used like a `subprocess.Popen`."""

    def __init__(self, function, *arguments, stderr=None, environment=None, ctrl_c=None):
        """Start it.

        Args:
            function: what it calls; of a module, where it is found by its name.
            arguments: of the function.
            stderr: a file, or None for a pipe.
            environment: [ours, as it is now]
            ctrl_c: the handler of SIGINT that it inherits [Python's].
        """
        stdin, self.stdin = _pipe("wb")
        stdout, self.stdout = _pipe("rb")
        errors, self.stderr = _pipe("rb") if stderr is None else (_duplicate(stderr), None)
        ends = (stdin, stdout, errors)
        environment = dict(os.environ if environment is None else environment)
        self._process = FORKS.Process(
            target=_be_program, args=(ends, environment, ctrl_c, function, arguments)
        )
        self._process.start()
        for end in ends:
            end.close()
        self.pid = self._process.pid

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()
        self._process.join()
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()

    def poll(self):
        return self._process.exitcode

    def wait(self, seconds):
        self._process.join(seconds)
        if self.poll() is None:
            raise TimeoutExpired("a forked process", seconds)
        return self.poll()

    def send_signal(self, number):
        # The server may have reaped it, and not have told us yet.
        with suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


def waltzrl(*arguments):
    """Be `waltzrl ARGUMENTS`."""
    from waltzrl.__main__ import main

    sys.argv = ["waltzrl", *map(str, arguments)]
    main()


def waltzrl_on_a_full_disk(*arguments):
    """Be `waltzrl ARGUMENTS`, for which no file grows beyond 8 kB."""
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))
    waltzrl(*arguments)


def _pipe(mode):
    """Return the process's end of a pipe, and ours as a file."""
    reading, writing = os.pipe()
    if mode == "wb":
        return Connection(reading, writable=False), os.fdopen(writing, mode)
    return Connection(writing, readable=False), os.fdopen(reading, mode)


def _duplicate(file):
    return Connection(os.dup(file.fileno()), readable=False)


def _be_program(ends, environment, ctrl_c, function, arguments):
    for descriptor, end in enumerate(ends):
        os.dup2(end.fileno(), descriptor)
        end.close()
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the process ends
    os.environ.clear()
    os.environ.update(environment)
    if ctrl_c is not None:
        signal.signal(signal.SIGINT, ctrl_c)
    function(*arguments)
