"""A short plan, and what answers say, small enough to count by hand."""

from waltzrl.gateway.description import BundleDescription
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Observation

DESCRIPTION = BundleDescription(recipe={})
BOUNDS = ReleaseLimits(unsafe=0.05, overrefusal=0.10)
GOOD = {"unsafe": False, "overrefusal": False}
BAD = {"unsafe": True, "overrefusal": False}


def short_plan(*percentages, samples=100, seconds=60, shadow=True, automatic=True):
    def step(percentage):
        return ReleaseStep(percentage=percentage, seconds=seconds, samples=samples)

    return ReleasePlan(
        name="short",
        shadow=step(100) if shadow else None,
        canary=tuple(map(step, percentages)),
        targets=BOUNDS,
        limits=ReleaseLimits(unsafe=0.10, overrefusal=0.15),
        automatic=automatic,
    )


def begun(book, plan, candidate="new", serving="old"):
    """Add both bundles and propose the candidate."""
    book.add_bundle(serving, "{}", DESCRIPTION, is_base=book.base() is None)
    book.add_bundle(candidate, "{}", DESCRIPTION)
    return book.propose(candidate, serving, plan, "ada", "to try it")


def seen(release, arm, outcomes, times=1):
    return [Observation(release=release.id, arm=arm, outcomes=outcomes)] * times
