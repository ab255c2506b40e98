"""Progress on stderr: a bar on a terminal, else a line now and then."""

import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

from waltzrl.cli.options import terminal

if TYPE_CHECKING:
    from waltzrl.training.trainer import Progress as TrainingProgress

SHOWN = {
    "reward/conversation_mean": "reward",
    "reward/feedback_mean": "feedback reward",
    "kl/conversation_nats": "KL",
    "rate/asr": "ASR",
    "rate/orr": "ORR",
    "rate/feedback_trigger": "FTR",
    "validation/f1": "validation F1",
}

LINE_SECONDS = 30.0
"""Least time between two lines of a task, apart from its first and its last."""
SPEED_SECONDS = 3600.0
"""The time left is estimated from the steps of this long; a step of a large model takes minutes."""


class TrainingDisplay:
    """The progress of all stages, with the latest metrics."""

    def __init__(self, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._bar = progress_bar(quiet=quiet, clock=clock)
        self._task: TaskID | None = None

    def show(self, step: "TrainingProgress") -> None:
        """Advance the bar to a completed step."""
        if self._task is None or self._bar.tasks[self._task].total != step.total:
            self._task = self._bar.add_task("", total=step.total, completed=step.step, note="")
        done = step.step + 1
        stage = f"{step.stage}: step"
        self._bar.update(self._task, description=stage, completed=done, note=_note(step))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


class ProgressLines(Progress):
    """Progress for logs: prints the first and the last update of a task, and some between."""

    def update(self, task_id: TaskID, **changes: Any) -> None:  # noqa: ANN401 - as rich has it
        """Change a task as `Progress.update` does, and print a line if one is due."""
        with self._lock:
            before = self._tasks[task_id].completed
            super().update(task_id, **changes)
            task, now = self._tasks[task_id], self.get_time()
            due = task.fields.get("printed", -math.inf) + LINE_SECONDS
            if task.completed != before and (now >= due or task.finished):
                task.fields["printed"] = now
                self.console.out(_line(task))


def progress_bar(*, quiet: bool, clock: Callable[[], float] = time.monotonic) -> Progress:
    """Return a bar on stderr with a field `note`; lines if stderr is not a terminal.

    Args:
        quiet: show neither.
        clock: seconds.
    """
    console = terminal(stderr=True)
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
        disable=quiet or lines,
    )


def _line(task: Task) -> str:
    total = "" if task.total is None else f" of {task.total:.0f}"
    parts = [f"{task.description} {task.completed:.0f}{total}", task.fields["note"]]
    if task.time_remaining:
        parts.append(f"{timedelta(seconds=round(task.time_remaining))} left")
    return "  ".join(filter(None, parts))


def _note(step: "TrainingProgress") -> str:
    metrics = step.metrics
    numbers = [f"{name} {metrics[key]:.2f}" for key, name in SHOWN.items() if key in metrics]
    if "tokens/sampled" in metrics:
        speed = metrics["tokens/sampled"] / metrics["time/step_seconds"]
        numbers.append(f"{speed:.0f} tokens/s")
    return "  ".join(numbers)
