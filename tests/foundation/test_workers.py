import asyncio
import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import active_children
from pathlib import Path

import pytest

from support.timing import until, wait_until
from waltzrl.errors import InputError
from waltzrl.foundation.workers import Workers

LONG_SECONDS = 3600.0
"""A test that waited for such a job would run out of its own time."""
SHORT_SECONDS = 30.0
"""More than it takes to start and to end processes on a busy machine."""


@dataclass(frozen=True)
class Sleep:
    name: str
    seconds: float = LONG_SECONDS

    async def run(self, report):
        os.write(1, f"{self.name}\n".encode())
        report(1, 2)
        await asyncio.sleep(self.seconds)


@dataclass(frozen=True)
class Fail:
    name: str

    async def run(self, report):
        raise InputError("the disk is full")


@dataclass(frozen=True)
class Done:
    name: str

    async def run(self, report):
        pass


def test_jobs_run_in_other_processes_until_all_are_done():
    with Workers(2, quiet=True) as workers:
        workers.run([Sleep(name, seconds=0.0) for name in ("a", "b", "c")])


def test_jobs_of_one_size_have_their_sum_as_a_bar_of_its_own(capsys):
    with Workers(2, quiet=False) as workers:
        workers.run([Sleep(name, seconds=0.0) for name in ("a", "b", "c")], together="all")
    told = [line.partition("  ")[0] for line in capsys.readouterr().err.splitlines()]
    # each of three told 1 of 2; lines that follow each other at once are left out
    assert {"all 1 of 6", "all 2 of 6", "all 3 of 6"} & {*told}


def test_a_job_that_was_done_before_says_so(capsys):
    with Workers(1, quiet=False) as workers:
        workers.run([Done("first"), Sleep("second", seconds=0.0)])
    told = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines()]
    assert "first 1 of 1 was done before" in told
    assert "second 1 of 2" in told


def test_the_first_failure_is_told_without_waiting_for_the_other_jobs():
    with pytest.raises(InputError, match="the disk is full"), Workers(2, quiet=True) as workers:
        workers.run([Sleep("a"), Fail("b"), Sleep("c")])


@contextmanager
def busy_workers():
    """Run three long jobs in two workers of a process of its own; yield it when both are busy."""
    code = (
        "from foundation.test_workers import Sleep, Workers\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        with Workers(2, quiet=True) as workers:\n"
        "            workers.run([Sleep('a'), Sleep('b'), Sleep('c')])\n"
        "    except KeyboardInterrupt:\n"
        "        raise SystemExit(130)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        assert {process.stdout.readline(), process.stdout.readline()} == {b"a\n", b"b\n"}
        yield process


def test_stopped_by_hand_all_processes_end_and_say_nothing():
    with busy_workers() as process:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        assert process.wait(SHORT_SECONDS) == 130
        assert process.stderr.read() == b""


def test_the_workers_of_a_killed_process_end():
    with busy_workers() as process, whose_children_end(process, 3):  # and a resource tracker
        process.kill()
        assert process.wait(SHORT_SECONDS) == -signal.SIGKILL


def test_beside_an_event_loop_whoever_is_cancelled_waits_for_no_job():
    async def story(workers):
        jobs = asyncio.create_task(workers.run_beside([Sleep("a")]))
        await until(active_children)
        jobs.cancel()
        await jobs

    with pytest.raises(asyncio.CancelledError), Workers(1, quiet=True) as workers:
        asyncio.run(story(workers))


def test_a_demo_that_is_told_to_end_leaves_no_process_behind(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-m", "waltzrl", "demo", "coach"],
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        wait_until(lambda: list(tmp_path.rglob("recipe.json")), seconds=120)  # its job began
        with whose_children_end(process, 2):  # the worker that trains, and a resource tracker
            process.terminate()  # as service managers do: it alone hears of it
            assert process.wait(SHORT_SECONDS) == 130
            assert b"stopped; run demo again to resume" in process.stderr.read()


@contextmanager
def whose_children_end(process, count):
    """Wait until the children that the process has now, so many, have ended; or end them."""
    names = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    children = [Path(f"/proc/{child}") for child in names]
    try:
        assert len(children) == count
        yield
        wait_until(lambda: not any(child.exists() for child in children))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
