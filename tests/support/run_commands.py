"""Runs commands of waltzrl in partial installations, each in a fork of this process.

Reads an installation as JSON from stdin, as `installations.py` writes it, with those that have more
and begin with what it has imported. Writes `{name: [exit status, what was printed]}` of all
commands to stdout.
"""

import atexit
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
from functools import cache

from sitecustomize import hide

LONGEST_SECONDS = 300.0


def run_installation(installation):
    """Return what came of all commands of an installation, and of those that have more."""
    hide(installation["hidden"])
    # The command line is built anew, of the packages that are found now.
    sys.modules.pop("waltzrl.__main__", None)
    for module in installation["imports"]:
        importlib.import_module(module)
    importlib.import_module("waltzrl.__main__")._build_commands()
    compile_rules()
    gc.freeze()  # else every fork copies all objects when it looks for garbage
    results = {name: run(**command) for name, command in installation["commands"].items()}
    for larger in installation["larger"]:
        results |= in_a_fork(larger)
    return results


@cache  # of which the forks have what it has compiled
def compile_rules():
    importlib.import_module("waltzrl.agents.rules").load_rulebook()


def in_a_fork(installation):
    """Run the commands of an installation in a fork, from which they are forked in turn."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as told:
            json.dump(run_installation(installation), told)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    os.waitpid(child, 0)
    return json.loads(text)


def run(arguments, until, folder, *, short=False):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(folder)
        be_command(arguments, writing, short)
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


def be_command(arguments, writing, short):
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(writing, 1)
    os.dup2(writing, 2)
    os.close(writing)
    sys.argv = ["waltzrl", *arguments]
    from waltzrl.__main__ import main

    try:
        main()
        sys.exit(0)
    except SystemExit as end:
        # As every exception, through what called us to the interpreter's end. That clears what this
        # fork shares with us, and so copies it: much of the time of a command that does nothing.
        if not short or not isinstance(end.code, int):
            raise
        status = end.code
    atexit._run_exitfuncs()
    gc.collect()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


if __name__ == "__main__":
    json.dump(run_installation(json.load(sys.stdin)), sys.stdout)
