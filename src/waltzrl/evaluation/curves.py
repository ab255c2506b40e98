"""The curves of a training run, as a report draws them."""

from pathlib import Path

import msgspec

from waltzrl.data.jsonl import read_objects
from waltzrl.errors import InputError

CURVES = {
    "reward/conversation_mean": "reward",
    "rate/asr": "asr",
    "rate/orr": "orr",
    "rate/feedback_trigger": "ftr",
    "kl/conversation_nats": "kl",
    "rate/label_accuracy": "label_accuracy",
}
"""Metrics of a run -> curves of the report."""


def read_curve(run: Path) -> list[dict[str, float]]:
    """Read what a run measured step by step, under the report's names.

    Raises:
        InputError: the run has no metrics, or they are damaged.
    """
    names = {"step": "step"} | CURVES
    path, lines = run / "metrics.jsonl", []
    for number, found in read_objects(path):
        try:
            lines.append(msgspec.convert(found, dict[str, float | None]))
        except msgspec.ValidationError as error:
            raise InputError(f"{path}:{number}: not a step's metrics: {error}") from None
    return [
        {names[key]: value for key, value in line.items() if key in names and value is not None}
        for line in lines
    ]
