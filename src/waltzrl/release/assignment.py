"""Which bundle a conversation meets: always the same one, whichever replica is asked."""

import hashlib

from waltzrl.release.state import Release

BUCKETS = 10_000
"""A percentage takes the first of them, so that raising it takes no conversation out."""


def bucket(key: str, conversation: str) -> int:
    """Return where a conversation falls, 0 to `BUCKETS` - 1, by keyed BLAKE2b.

    Args:
        key: at most 64 bytes; under another key the conversation falls elsewhere, independently.
        conversation: what names it.
    """
    text = conversation.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, key=key.encode(), digest_size=8).digest()) % BUCKETS


def serves_candidate(release: Release, conversation: str) -> bool:
    """Say whether the candidate answers this conversation."""
    return _among(release, conversation, release.percentage)


def is_shadowed(release: Release, conversation: str) -> bool:
    """Say whether the candidate answers this conversation too, for nobody to see."""
    shadow = release.plan.shadow
    if release.state != "shadow" or shadow is None:
        return False
    return _among(release, conversation, shadow.percentage)


def _among(release: Release, conversation: str, percentage: float) -> bool:
    return bucket(release.id, conversation) < percentage / 100 * BUCKETS
