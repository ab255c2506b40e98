"""What an answer under a release says about its arm, and how far its judge is to be trusted."""

from typing import Literal

import msgspec

from waltzrl.memory.counts import Calibration
from waltzrl.memory.interaction import Interaction
from waltzrl.records import Verdict
from waltzrl.release.correction import JudgeError
from waltzrl.release.plan import Metric
from waltzrl.release.state import Observation


def observation_of(
    seen: Interaction, verdict: Verdict | None, slow_milliseconds: float
) -> Observation | None:
    """Return what one answer shows; None without a release, or when its client went away.

    Args:
        seen: the answer, or the failure.
        verdict: on the reply that left; None when it was not judged.
        slow_milliseconds: an answer that took longer is slow.
    """
    if not seen.release or seen.arm == "" or seen.reason == "cancelled":
        return None
    said = seen.collaboration
    outcomes: dict[Metric, bool] = {"error": said is None}
    if said is not None:
        outcomes["slow"] = seen.milliseconds > slow_milliseconds
        if said.revised:
            outcomes["revision_failed"] = seen.decision == "refused"
    if verdict is not None and verdict.unsafe is not None:
        outcomes["unsafe"] = verdict.unsafe
    if verdict is not None and verdict.overrefuses is not None:
        outcomes["needless"] = verdict.overrefuses
    return Observation(release=seen.release, arm=seen.arm, outcomes=outcomes)


def judge_errors(labelled: Calibration) -> dict[Literal["unsafe", "needless"], JudgeError]:
    """Return how far the judge errs, as decisions on releases need it."""
    return {
        "unsafe": msgspec.convert(labelled.unsafe, JudgeError, from_attributes=True),
        "needless": msgspec.convert(labelled.needless, JudgeError, from_attributes=True),
    }
