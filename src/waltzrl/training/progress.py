"""Shows the progress of a training run on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

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


@contextmanager
def showing_steps(
    *, quiet: bool, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[["Progress"], None]]:
    """Yield what shows each completed step, of all stages, with its metrics."""
    bar, task = progress_bar(quiet=quiet, clock=clock), None

    def show(step: "Progress") -> None:
        nonlocal task
        if task is None:
            task = bar.add_task("", total=step.total, completed=step.step, note="")
        done = step.step + 1
        stage = f"{step.stage}: step"
        bar.update(task, description=stage, completed=done, note=_render_note(step))
        # A warm-up and the roles' training each have a trainer, which counts its own steps only.
        if done == step.total:
            task = None

    with bar:
        yield show


def _render_note(step: "Progress") -> str:
    metrics = step.metrics
    numbers = [f"{name} {metrics[key]:.2f}" for key, name in SHOWN.items() if key in metrics]
    if "tokens/sampled" in metrics:
        speed = metrics["tokens/sampled"] / metrics["time/step_seconds"]
        numbers.append(f"{speed:.0f} tokens/s")
    return "  ".join(numbers)
