"""Assigns conversations to bundles: sticky, and the same on every replica."""

from waltzrl.foundation.buckets import is_among
from waltzrl.operations.release.state import Release


def serves_candidate(release: Release, conversation: str) -> bool:
    """Return whether the candidate answers this conversation."""
    return is_among(_derive_key(release), conversation, release.percentage)


def is_shadowed(release: Release, conversation: str) -> bool:
    """Return whether the candidate answers this conversation as a shadow."""
    shadow = release.plan.shadow
    if release.state != "shadow" or shadow is None:
        return False
    return is_among(_derive_key(release), conversation, shadow.percentage)


def _derive_key(release: Release) -> str:
    return f"{release.id} {release.secret}"
