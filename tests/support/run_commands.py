"""Runs commands of waltzrl, each in a fork of this process, which has imported what is slow.

Reads `[[arguments, text before which it is not stopped or null], ...]` as JSON from stdin, and
writes `[[exit status, what it printed], ...]` to stdout.
"""

import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time

SLOW = (
    "waltzrl.cli",
    "pydantic",
    "aiohttp",
    "re2",
    "torch",
    "transformers",
    "peft",
    "sqlalchemy",
    "matplotlib.pyplot",
)
LONGEST_SECONDS = 120


def run(arguments, until):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        be_command(arguments, writing)
    os.close(writing)
    printed, stopped = b"", until is None
    deadline = time.monotonic() + LONGEST_SECONDS
    while True:
        if not select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0]:
            os.killpg(child, signal.SIGKILL)  # its end of the pipe is closed by that
        part = os.read(reading, 1 << 16)
        printed += part
        if not part:
            break
        if not stopped and until.encode() in printed:
            stopped = True
            os.kill(child, signal.SIGTERM)
    os.close(reading)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), printed.decode("utf-8", "replace")


def be_command(arguments, writing):
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    sys.argv = ["waltzrl", *arguments]
    from waltzrl.cli import main

    main()
    sys.exit()  # as every exception, through what called us to the interpreter's end


if __name__ == "__main__":
    for module in SLOW:
        with contextlib.suppress(ModuleNotFoundError):
            importlib.import_module(module)
    json.dump([run(*command) for command in json.load(sys.stdin)], sys.stdout)
