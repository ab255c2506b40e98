"""Jobs in worker processes, one per core, with progress reports."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import contextmanager
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.queues import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Protocol, Self

from rich.progress import TaskID

from waltzrl.foundation.progress import progress_bar

JobProgress = tuple[str, int, int]
"""Name of a job, completed steps, total steps."""

PREPARES = "starting and reading its data"
NOTHING_TO_DO = "was done before"
"""Notes on bars: of a job before its first report, and of one that ends without any."""

OPENMP_SETTINGS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0"}
"""Keep waiting threads from spinning, which costs more than the work if all cores are busy."""

_reports: "SimpleQueue[JobProgress]"


class Job(Protocol):
    """Work that a process of its own can do."""

    @property
    def name(self) -> str:
        """Tells it from the other jobs that run beside it."""
        ...

    async def run(self, report: Callable[[int, int], None]) -> None:
        """Do what is not done yet, and report steps done and steps in all."""
        ...


class Report(Protocol):
    """Shows how far something is."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Show it."""
        ...


class Workers:
    """Worker processes that run jobs, with a progress bar for each job."""

    def __init__(self, count: int, *, quiet: bool) -> None:
        # OpenMP reads them when a worker loads it.
        os.environ.update(OPENMP_SETTINGS)
        # A fork would copy the locks of other threads in whatever state they are.
        context = get_context("spawn")
        # What is put there arrives before the result of the job that put it.
        self._reports: SimpleQueue[JobProgress] = context.SimpleQueue()
        self._pool = ProcessPoolExecutor(count, context, _start_worker, (self._reports,))
        self._bar = progress_bar(quiet=quiet)

    def run(self, jobs: Sequence[Job], together: str = "") -> None:
        """Run all jobs and wait; raise the first failure.

        Args:
            jobs: their names are those of their bars.
            together: name of one more bar, for all jobs, which must be of one size. Only jobs that
                have begun have a bar then.
        """
        tasks = {
            job.name: self._bar.add_task(job.name, total=None, note=PREPARES, visible=not together)
            for job in jobs
        }
        if together:
            tasks[together] = self._bar.add_task(together, total=None, note="")
        names = {self._pool.submit(_run_job, job): job.name for job in jobs}
        waiting = set(names)
        while waiting:
            # The timeout lets the bars move while no job ends.
            done, waiting = wait_for(waiting, timeout=0.5)
            self._update_bars(tasks)
            if together:
                self._update_sum(tasks, together)
            for job in done:
                job.result()
                if not together:
                    self._end_bar(tasks[names[job]])
        for task in tasks.values():
            self._bar.remove_task(task)

    @contextmanager
    def show_task(self, name: str) -> Iterator[Report]:
        """Show the progress of something that this process does itself, while the block runs."""
        task = self._bar.add_task(name, total=None, note="")

        def report(done: int, total: int | None, note: str = "") -> None:
            self._bar.update(task, completed=done, total=total, note=note)

        try:
            yield report
        finally:
            self._bar.remove_task(task)

    async def run_beside(self, jobs: Sequence[Job]) -> None:
        """Run all jobs without blocking the event loop; cancellation terminates them."""
        try:
            await asyncio.to_thread(self.run, jobs)
        except asyncio.CancelledError:
            _terminate_workers()  # or the event loop would wait for the thread and its jobs
            raise

    def _update_bars(self, tasks: dict[str, TaskID]) -> None:
        while not self._reports.empty():
            name, completed, total = self._reports.get()
            self._bar.update(tasks[name], completed=completed, total=total, note="", visible=True)

    def _end_bar(self, task_id: TaskID) -> None:
        """Show that a job is done that had nothing to report."""
        (task,) = (task for task in self._bar.tasks if task.id == task_id)
        if task.total is None:
            self._bar.update(task_id, completed=1, total=1, note=NOTHING_TO_DO)

    def _update_sum(self, tasks: dict[str, TaskID], together: str) -> None:
        bars = {task.id: task for task in self._bar.tasks}
        parts = [bars[task] for name, task in tasks.items() if name != together]
        for part in parts:
            if part.finished:
                self._bar.update(part.id, visible=False)
        sizes = [part.total for part in parts if part.total is not None]
        if sizes:
            completed = sum(part.completed for part in parts)
            self._bar.update(tasks[together], completed=completed, total=sizes[0] * len(parts))

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
        if kind is not None:  # jobs can be resumed, and to wait for them could take minutes
            _terminate_workers()
        self._pool.shutdown(wait=True, cancel_futures=True)


def _terminate_workers() -> None:
    for worker in active_children():
        worker.terminate()


def _start_worker(reports: "SimpleQueue[JobProgress]") -> None:
    global _reports
    _reports = reports
    # Ctrl-C reaches all processes of the terminal; only the parent reacts, and stops the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = parent_process()
    assert parent is not None, "a worker has a parent process"
    parent.join()
    os._exit(1)  # the parent was killed, so it cannot terminate us


def _run_job(job: Job) -> None:
    asyncio.run(job.run(lambda done, total: _reports.put((job.name, done, total))))
