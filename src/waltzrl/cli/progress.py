"""Progress bars on stderr; hidden if it is not a terminal."""

from typing import TYPE_CHECKING, Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)

if TYPE_CHECKING:
    from waltzrl.training.trainer import Progress as TrainingProgress

SHOWN = {
    "reward/conversation_mean": "reward",
    "reward/feedback_mean": "feedback reward",
    "kl/conversation_nats": "KL",
    "rate/asr": "ASR",
    "rate/orr": "ORR",
    "rate/feedback_trigger": "FTR",
}


class TrainingDisplay:
    """A bar for all stages, with the latest metrics beside it."""

    def __init__(self, *, quiet: bool) -> None:
        self._bar = progress_bar(quiet=quiet)
        self._task: TaskID | None = None

    def show(self, step: "TrainingProgress") -> None:
        """Advance the bar to a completed step."""
        if self._task is None or self._bar.tasks[self._task].total != step.total:
            self._task = self._bar.add_task("", total=step.total, completed=step.step, note="")
        done = step.step + 1
        self._bar.update(self._task, description=step.stage, completed=done, note=_note(step))

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


def progress_bar(*, quiet: bool) -> Progress:
    """Return a bar on stderr with a field `note`; hidden if stderr is not a terminal."""
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        disable=quiet or not console.is_terminal,
    )


def _note(step: "TrainingProgress") -> str:
    metrics = step.metrics
    numbers = [f"{name} {metrics[key]:.2f}" for key, name in SHOWN.items() if key in metrics]
    if "tokens/sampled" in metrics:
        speed = metrics["tokens/sampled"] / metrics["time/step_seconds"]
        numbers.append(f"{speed:.0f} tokens/s")
    return "  ".join(numbers)
