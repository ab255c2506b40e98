"""Jobs on several cores: each worker process is one core, and reports how far it is."""

import asyncio
import os
import queue
import signal
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from multiprocessing import Queue, active_children, get_context, parent_process
from threading import Thread
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rich.progress import TaskID

from waltzrl.cli.progress import progress_bar

if TYPE_CHECKING:
    from waltzrl.demo import Job

Done = tuple[str, int, int]
"""Name of a job, what is done, of how much."""

QUIET_THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
"""Threads that wait must not spin: on busy cores that costs more than the work."""

_reports: "Queue[Done]"


class Workers:
    """Processes that run jobs, with a progress bar for each job."""

    def __init__(self, count: int, *, quiet: bool) -> None:
        os.environ.update(QUIET_THREADS)
        context = get_context("spawn")
        self._reports: Queue[Done] = context.Queue()
        self._pool = ProcessPoolExecutor(count, context, _begin, (self._reports,))
        self._bar = progress_bar(quiet=quiet)

    def run(self, jobs: Sequence["Job"]) -> None:
        """Run all jobs and wait; the first failure is raised."""
        tasks = {job.name: self._bar.add_task(job.name, total=None, note="") for job in jobs}
        waiting = {self._pool.submit(_work, job) for job in jobs}
        while waiting:
            done, waiting = wait_for(waiting, timeout=0.5)
            self._show(tasks)
            for one in done:
                _raise_failure(one)
        for task in tasks.values():
            self._bar.remove_task(task)

    async def run_beside(self, jobs: Sequence["Job"]) -> None:
        """Run all jobs beside the event loop; whoever is cancelled ends them."""
        try:
            await asyncio.to_thread(self.run, jobs)
        except asyncio.CancelledError:
            _end_workers()  # or the loop waits for the thread, and that for the jobs
            raise

    def _show(self, tasks: dict[str, TaskID]) -> None:
        while True:
            try:
                name, completed, total = self._reports.get_nowait()
            except queue.Empty:
                return
            self._bar.update(tasks[name], completed=completed, total=total)

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()
        if kind is not None:  # what they do can be done again; the others might take minutes
            _end_workers()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _raise_failure(job: "Future[None]") -> None:
    if failure := job.exception():
        raise failure


def _end_workers() -> None:
    for worker in active_children():
        worker.terminate()


def _begin(reports: "Queue[Done]") -> None:
    global _reports
    _reports = reports
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all; who started us decides
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a worker was started by somebody"
    parent.join()
    os._exit(1)  # it was killed, and can end nobody any more


def _work(job: "Job") -> None:
    asyncio.run(job.run(lambda done, total: _reports.put((job.name, done, total))))
