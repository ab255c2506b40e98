"""Assigns names to shares of all names: sticky, and the same on every replica."""

import hashlib

BUCKETS = 10_000
"""A percentage takes the lowest ones, so that raising it keeps every conversation that is in."""


def bucket(key: str, name: str) -> int:
    """Return the bucket of a name, 0 to `BUCKETS` - 1.

    Args:
        key: of the BLAKE2b, at most 64 bytes; buckets under different keys are independent.
        name: of a conversation, a request or a user.
    """
    text = name.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, key=key.encode(), digest_size=8).digest()) % BUCKETS


def is_among(key: str, name: str, percentage: float) -> bool:
    """Return whether a name is in this share of all names; larger shares contain smaller ones."""
    return bucket(key, name) < percentage / 100 * BUCKETS
