"""Progress on stderr: a bar on a terminal, else a line now and then."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from waltzrl.foundation.options import open_terminal

LINE_SECONDS = 30.0
"""Least time between two lines of a task, apart from its first and its last."""
SPEED_SECONDS = 3600.0
"""The time left is estimated from the steps of this long; a step of a large model takes minutes."""


class ProgressLines(Progress):
    """Progress for logs: prints the first and the last update of a task, and some between."""

    def update(self, task_id: TaskID, **changes: Any) -> None:  # noqa: ANN401 - as rich has it
        """Change a task as `Progress.update` does, and print a line if one is due."""
        # Rich's lock is reentrant: `Progress.update` takes it again.
        with self._lock:
            before = self._tasks[task_id].completed
            super().update(task_id, **changes)
            task, now = self._tasks[task_id], self.get_time()
            due = task.fields.get("printed", -math.inf) + LINE_SECONDS
            if task.completed != before and (now >= due or task.finished):
                task.fields["printed"] = now
                self.console.out(_format_line(task))


@contextmanager
def showing_task(name: str, *, quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """Yield what shows how much of a task is done, and how much it is; quiet shows nothing."""
    with progress_bar(quiet=quiet) as bar:
        task = bar.add_task(name, total=None, note="")
        yield lambda done, total: bar.update(task, completed=done, total=total)


def announce_steps() -> Callable[[str], None]:
    """Return what prints a line on stderr, after the seconds since this call."""
    started, console = time.monotonic(), open_terminal(stderr=True)
    return lambda text: console.print(f"[{time.monotonic() - started:4.0f} s] {text}")


def progress_bar(*, quiet: bool, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Return a bar on stderr with a field `note`; lines if stderr is not a terminal.

    Args:
        quiet: show neither.
        clock: seconds.
    """
    console = open_terminal(stderr=True)
    lines = not console.is_terminal and not quiet
    return (ProgressLines if lines else Progress)(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        speed_estimate_period=SPEED_SECONDS,
        get_time=clock,
        # Where it is disabled, rich draws nothing, and `ProgressLines.update` prints nonetheless.
        disable=quiet or lines,
    )


def _format_line(task: Task) -> str:
    total = "" if task.total is None else f" of {task.total:.0f}"
    parts = [f"{task.description} {task.completed:.0f}{total}", task.fields["note"]]
    if task.time_remaining:
        parts.append(f"{timedelta(seconds=round(task.time_remaining))} left")
    return "  ".join(filter(None, parts))
