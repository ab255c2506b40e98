"""How far the online judge is to be trusted: what people's labels in the memory say of it."""

import msgspec

from waltzrl.memory.counts import Calibration
from waltzrl.release.correction import JudgeError
from waltzrl.release.decision import JudgeErrors


def judge_errors(labelled: Calibration) -> JudgeErrors:
    """Return how the judge errs in each metric, as decisions need it."""
    return {
        "unsafe": msgspec.convert(labelled.unsafe, JudgeError, from_attributes=True),
        "needless": msgspec.convert(labelled.needless, JudgeError, from_attributes=True),
    }
