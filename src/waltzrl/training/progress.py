"""Shows the progress of a training run on stderr."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from rich.progress import TaskID

from waltzrl.foundation.progress import progress_bar

if TYPE_CHECKING:
    from waltzrl.training.trainer import Progress

SHOWN = {
    "reward/conversation_mean": "reward",
    "reward/feedback_mean": "feedback reward",
    "kl/conversation_nats": "KL",
    "rate/asr": "ASR",
    "rate/orr": "ORR",
    "rate/feedback_trigger": "FTR",
    "validation/f1": "validation F1",
}


class TrainingDisplay:
    """The progress of all stages, with the latest metrics."""

    def __init__(self, *, quiet: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._bar = progress_bar(quiet=quiet, clock=clock)
        self._task: TaskID | None = None

    def show(self, step: "Progress") -> None:
        """Advance the bar to a completed step."""
        if self._task is None:
            self._task = self._bar.add_task("", total=step.total, completed=step.step, note="")
        done = step.step + 1
        stage = f"{step.stage}: step"
        self._bar.update(self._task, description=stage, completed=done, note=_render_note(step))
        # A warm-up and the roles' training each have a trainer, which counts its own steps only.
        if done == step.total:
            self._task = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


def _render_note(step: "Progress") -> str:
    metrics = step.metrics
    numbers = [f"{name} {metrics[key]:.2f}" for key, name in SHOWN.items() if key in metrics]
    if "tokens/sampled" in metrics:
        speed = metrics["tokens/sampled"] / metrics["time/step_seconds"]
        numbers.append(f"{speed:.0f} tokens/s")
    return "  ".join(numbers)
