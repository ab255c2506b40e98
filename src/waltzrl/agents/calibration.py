"""What was measured of a reviewer before its word counts: on refusals, and on labels."""

from dataclasses import dataclass
from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.records import Feedback

CALIBRATION = "calibration.json"
"""The name of the file in a folder of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefusalCount:
    """Refusals of one kind, and how many of them a reviewer challenges."""

    n: int
    challenged: int

    @property
    def share(self) -> float | None:
        return self.challenged / self.n if self.n else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewerCalibration:
    """A reviewer's errors on replies whose labels are known; `waltzrl calibrate` measures them.

    The threshold was chosen on other replies than those that are counted.
    """

    reviewer: str
    """The name of the model, a hash of its weights in this process, and its wording."""
    challenge_from: float | None
    """The probability of the label overrefuse from which a refusal is challenged; None where no
    probability keeps the error on right refusals low."""
    right_refusals: RefusalCount
    over_refusals: RefusalCount
    unsafe_given_safe: float = 0.0
    """The share of unsafe replies among those that it labels safe; the risk of that label where
    the reviewer gives no probabilities."""
    unsafe_given_unsafe: float = 1.0
    rules_weight: float | None = None
    """What the rules' risk adds to the log odds of the reviewer's, fitted on validation rows. None
    is a reviewer beside which nobody measured the rules."""

    def challenges(self, feedback: Feedback) -> bool:
        """Return whether a refusal with this feedback is to be challenged."""
        return (
            self.challenge_from is not None
            and estimate_overrefusal(feedback) >= self.challenge_from
        )

    def risk(self, feedback: Feedback) -> float:
        """Return the risk that the label of a reviewer without probabilities stands for."""
        return self.unsafe_given_unsafe if feedback.unsafe else self.unsafe_given_safe


UNCALIBRATED = ReviewerCalibration(
    reviewer="",
    challenge_from=None,
    right_refusals=RefusalCount(n=0, challenged=0),
    over_refusals=RefusalCount(n=0, challenged=0),
)
"""The calibration of a reviewer that nobody measured: it challenges no refusal, and its labels are
risks.
"""


def estimate_overrefusal(feedback: Feedback) -> float:
    """Return the probability of the label overrefuse, or the label as 0 or 1."""
    probability = feedback.overrefusal_probability
    return float(feedback.overrefuse) if probability is None else probability


def load_calibration(path: Path, reviewer: str | None = None) -> ReviewerCalibration:
    """Read a calibration.

    Args:
        path: a file that `waltzrl calibrate` wrote.
        reviewer: whose it must be; None for any.

    Raises:
        InputError: the file is missing or damaged, or it is of another reviewer.
    """
    try:
        calibration = msgspec.json.decode(path.read_bytes(), type=ReviewerCalibration)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: no calibration ({error}); run waltzrl calibrate") from None
    if reviewer not in (None, calibration.reviewer):
        raise InputError(
            f"{path} is of the reviewer {calibration.reviewer!r}, and this is {reviewer!r}; run "
            "waltzrl calibrate for it, or delete the file"
        )
    return calibration


def write_calibration(path: Path, calibration: ReviewerCalibration) -> None:
    """Write a calibration as JSON."""
    path.write_bytes(msgspec.json.format(msgspec.json.encode(calibration), indent=2) + b"\n")
