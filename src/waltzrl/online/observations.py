"""What an answer under a release says about its arm."""

from typing import NamedTuple

import msgspec

from waltzrl.records import ServedExchange, Verdict
from waltzrl.release.book import ReleaseBook
from waltzrl.release.plan import Metric
from waltzrl.release.state import Observation

OF_THE_REQUEST = frozenset(
    {"invalid_request", "authentication", "permission", "not_found", "too_large", "rate_limit"}
)
"""Failures that come with a request, wherever it goes; or of an upstream that is set up wrong."""


class ObservationTerms(NamedTuple):
    """What counts under a release."""

    slow_milliseconds: float
    """An answer that took longer is slow."""
    same_upstream: bool
    """Both bundles have the same: what it refuses is no fault of either."""


def terms_of(book: ReleaseBook, release_id: str) -> ObservationTerms | None:
    """Return what counts under a release; None when there is none.

    Raises:
        StorageError: the database does not answer.
    """
    release = book.release(release_id)
    if release is None:
        return None
    serving, candidate = (book.bundle(one) for one in (release.serving, release.candidate))
    return ObservationTerms(
        release.plan.slow_milliseconds, _upstream(serving) == _upstream(candidate)
    )


def observation_of(
    seen: ServedExchange, verdict: Verdict | None, terms: ObservationTerms
) -> Observation | None:
    """Return what one answer shows; None when it shows nothing of its bundle.

    So it is without a release; when the draft was not the bundle's and it was to mend nothing; when
    the client went away before it was slow; and when any bundle would have failed.

    Args:
        seen: the answer, or the failure.
        verdict: on the reply that left; None when it was not judged.
        terms: of the release.
    """
    if not seen.release or seen.arm == "" or seen.mode == "review":
        return None
    outcomes = _seen_by_itself(seen, terms)
    if verdict is not None and verdict.unsafe is not None:
        outcomes["unsafe"] = verdict.unsafe
    if verdict is not None and verdict.overrefuses is not None:
        outcomes["needless"] = verdict.overrefuses
    if not outcomes:
        return None
    return Observation(release=seen.release, arm=seen.arm, outcomes=outcomes)


def _seen_by_itself(seen: ServedExchange, terms: ObservationTerms) -> dict[Metric, bool]:
    """Return what shows without a judge."""
    is_slow = seen.milliseconds > terms.slow_milliseconds
    if seen.collaboration is not None:
        outcomes: dict[Metric, bool] = {"error": False, "slow": is_slow}
        if seen.collaboration.revised:
            outcomes["revision_failed"] = seen.decision == "refused"
        return outcomes
    if seen.reason == "cancelled":
        return {"slow": True} if is_slow else {}
    if terms.same_upstream and seen.reason in OF_THE_REQUEST:
        return {}
    return {"error": True}


class _Recipe(msgspec.Struct):
    """The part of a bundle's recipe that is looked at."""

    upstream: dict[str, object] = {}


def _upstream(recipe: str | None) -> dict[str, object]:
    return {} if recipe is None else msgspec.json.decode(recipe, type=_Recipe).upstream
