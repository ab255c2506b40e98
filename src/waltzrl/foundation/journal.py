"""The metrics of a run at each step, for people (TensorBoard) and for programs (JSONL)."""

import json
import math
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from waltzrl.errors import InputError
from waltzrl.foundation.files import disk_errors, whole_lines

NAME = re.compile(r"[a-z0-9_]+(/[a-z0-9_]+)+")
"""A metric's name is a path that ends with a unit: `reward/feedback_mean`, `time/step_seconds`."""


class Journal:
    """One line per step in `metrics.jsonl`, and TensorBoard events if it is installed.

    Example:
        {"step": 120, "reward/feedback_mean": 0.62, "time/step_seconds": 1.9}
    """

    def __init__(self, folder: Path, resumed_step: int = -1) -> None:
        """Open the journal and delete the steps after `resumed_step`, which will run again.

        Args:
            folder: the run's folder.
            resumed_step: the last step to keep; -1 for a new run.

        Raises:
            InputError: a line is invalid, or the folder cannot be written to.
        """
        path = folder / "metrics.jsonl"
        with disk_errors(path):
            path.touch()
            os.truncate(path, _length_until(path, resumed_step))
            self._file = path.open("a", encoding="utf-8")
            self._events = _TensorBoard.at(folder / "tensorboard", first_step=resumed_step + 1)
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
            if self._events is not None:
                self._events.write(step, metrics)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


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
