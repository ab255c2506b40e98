"""The metrics of a run at each step, for programs (JSONL) and for people (TensorBoard, W&B)."""

import json
import logging
import math
import os
import re
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from waltzrl.errors import InputError
from waltzrl.foundation.files import Json, disk_errors, whole_lines, write_bytes
from waltzrl.foundation.texts import describe_error

if TYPE_CHECKING:
    from wandb import Run

logger = logging.getLogger(__name__)

WANDB_ID = "wandb-id"
"""File in a run's folder with the id of its W&B run."""
FINISH_SECONDS = 60
"""Longest wait for W&B at the end of a run; what it lacks then is in the folder `wandb`."""
NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)+")
"""A metric's name is a path that ends with a unit: `reward/feedback_mean`, `time/step_seconds`."""


METRICS = "metrics.jsonl"
"""File in a run's folder with the metrics, a line for each step."""


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """Read the metrics of a run, or of its warm-up, step by step; none where it has not begun.

    Values that were not finite, which a journal writes as null, are left out.
    """
    path = folder / METRICS
    steps = map(json.loads, whole_lines(path) if path.exists() else ())
    return [{name: value for name, value in step.items() if value is not None} for step in steps]


@dataclass(frozen=True, slots=True, kw_only=True)
class WandbProject:
    """Where on Weights & Biases a run is shown, and with what settings."""

    name: str
    config: dict[str, Json]
    """The settings, by their names."""


class Display(Protocol):
    """Shows the metrics of a journal to people."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Show one step, after all those before it."""

    def close(self) -> None:
        """End the run."""


class Journal:
    """One line per step in `metrics.jsonl`; TensorBoard events if it is installed, W&B if asked.

    Example:
        {"step": 120, "reward/feedback_mean": 0.62, "time/step_seconds": 1.9}
    """

    def __init__(
        self, folder: Path, resumed_step: int = -1, wandb: WandbProject | None = None
    ) -> None:
        """Open the journal and delete the steps after `resumed_step`, which will run again.

        Args:
            folder: the run's folder.
            resumed_step: the last step to keep; -1 for a new run.
            wandb: shows the steps too.

        Raises:
            InputError: a line is invalid, or the folder cannot be written to.
            ModuleNotFoundError: wandb is not installed.
        """
        path = folder / METRICS
        first_step = resumed_step + 1
        with disk_errors(path):
            path.touch()
            # Before the truncation: W&B may have been sent the steps that are cut off here.
            unseen_step = _step_after(path)
            os.truncate(path, _length_until(path, resumed_step))
            self._file = path.open("a", encoding="utf-8")
            events = _TensorBoard.at(folder / "tensorboard", first_step)
        self._displays: list[Display] = [] if events is None else [events]
        if wandb is not None:
            self._displays.append(_Wandb(folder, first_step, unseen_step, wandb))
        self._path = path

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one step; values that are not finite become null.

        Raises:
            ValueError: a name is not a path.
            InputError: the disk is full.
        """
        invalid = [name for name in metrics if not NAME.fullmatch(name)]
        if invalid:
            raise ValueError(f"metric names must look like time/step_seconds, got {invalid}")
        values = {name: value if math.isfinite(value) else None for name, value in metrics.items()}
        with disk_errors(self._path):
            self._file.write(json.dumps({"step": step, **values}) + "\n")
            self._file.flush()
            for display in self._displays:
                display.write(step, metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with disk_errors(self._path), closing(self._file):  # which writes again what did not fit
            for display in self._displays:
                display.close()


def _step_after(path: Path) -> int:
    """Return the number of the step after the last line; 0 if there is none, or it is damaged."""
    try:
        # Without a line, unpacking is a ValueError too.
        (last,) = deque(whole_lines(path), maxlen=1)
        return int(json.loads(last)["step"]) + 1
    except (ValueError, KeyError, TypeError):
        return 0


def _length_until(path: Path, step: int) -> int:
    """Return the length in bytes of the complete lines up to and including `step`."""
    length = 0
    for number, line in enumerate(whole_lines(path), start=1):
        try:
            is_later = json.loads(line)["step"] > step
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f'{path}:{number}: need a JSON object with "step"; delete this line to continue'
            ) from error
        if is_later:
            break
        length += len(line)
    return length


class _TensorBoard:
    """Event files, written with the tensorboard package and without torch."""

    def __init__(self, folder: Path, first_step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names.
        self._records = RecordWriter((folder / f"events.out.tfevents.{time.time_ns()}").open("wb"))
        # The first record of an event file has to be this one.
        self._append(file_version="brain.Event:2")
        # Makes TensorBoard ignore what an interrupted run wrote from this step on.
        self._append(step=first_step, session_log=SessionLog(status=SessionLog.START))

    @classmethod
    def at(cls, folder: Path, first_step: int) -> Self | None:
        """Open event files in the folder, or return None if tensorboard is not installed."""
        try:
            return cls(folder, first_step)
        except ModuleNotFoundError:
            return None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=v) for name, v in metrics.items()]
        self._append(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        self._records.close()

    def _append(self, **fields: object) -> None:
        event = self._event(wall_time=time.time(), **fields)
        self._records.write(event.SerializeToString())
        self._records.flush()


class _Wandb:
    """A run of Weights & Biases, which continues that of the folder.

    Steps that run again have the same numbers, and W&B takes no step back: what it has is not sent
    again. Whatever fails here is a warning, and training goes on.
    """

    def __init__(
        self, folder: Path, first_step: int, unseen_step: int, project: WandbProject
    ) -> None:
        import wandb

        self._folder = folder
        path = folder / WANDB_ID
        continues = first_step > 0 and path.exists()
        if not continues:
            write_bytes(path, secrets.token_hex(8).encode())
        start = partial(
            wandb.init,
            project=project.name,
            config=project.config,
            id=path.read_text(),
            resume="allow",
            allow_val_change=True,
            name=str(folder),
            dir=str(folder),
            # The terminal is the training's own.
            settings=wandb.Settings(console="off", silent=True, finish_timeout=FINISH_SECONDS),
        )
        self._run: Run | None = None
        with self._warned(f"logging offline; `wandb sync {folder}/wandb/offline-run-*` uploads it"):
            self._run = start()
        if self._run is None:
            with self._warned("training goes on without it"):
                wandb.teardown()  # its process still holds the id
                self._run = start(mode="offline")
        # Only a server knows what it has got; without one it is what was written before.
        known = 0 if self._run is None else self._run.starting_step
        self._first_step: int = known or (unseen_step if continues else 0)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        if self._run is not None and step >= self._first_step:
            with self._warned("training goes on without it"):
                self._run.log(dict(metrics), step=step, commit=True)

    def close(self) -> None:
        if self._run is not None:
            with self._warned(f"`wandb sync {self._folder}/wandb/*run-*` uploads what it lacks"):
                self._run.finish()

    @contextmanager
    def _warned(self, consequence: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the boundary: W&B fails in many ways
            logger.warning("W&B: %s; %s", describe_error(error), consequence)
            self._run = None
