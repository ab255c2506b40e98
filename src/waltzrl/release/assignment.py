"""Which bundle a conversation meets: always the same one, whichever replica is asked."""

import hashlib

from waltzrl.release.state import Release

BUCKETS = 10_000
"""A percentage takes the first of them, so that raising it takes no conversation out."""


def bucket(key: str, name: str) -> int:
    """Return where a conversation, or whatever has the name, falls: 0 to `BUCKETS` - 1.

    Args:
        key: of the BLAKE2b, at most 64 bytes; under another key it falls elsewhere, independently.
        name: always falls into the same one.
    """
    text = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, key=key.encode(), digest_size=8).digest()) % BUCKETS


def is_among(key: str, name: str, percentage: float) -> bool:
    """Say whether a name belongs to this share of all names; a larger share has those in it too."""
    return bucket(key, name) < percentage / 100 * BUCKETS


def serves_candidate(release: Release, conversation: str) -> bool:
    """Say whether the candidate answers this conversation."""
    return is_among(_key(release), conversation, release.percentage)


def is_shadowed(release: Release, conversation: str) -> bool:
    """Say whether the candidate answers this conversation too, for nobody to see."""
    shadow = release.plan.shadow
    if release.state != "shadow" or shadow is None:
        return False
    return is_among(_key(release), conversation, shadow.percentage)


def _key(release: Release) -> str:
    return f"{release.id} {release.secret}"
