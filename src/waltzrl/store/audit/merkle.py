"""The Merkle tree of RFC 6962 (Certificate Transparency), section 2.1: roots and proofs.

MTH({})        = SHA-256()
MTH({d})       = SHA-256(0x00 || d)
MTH(D[n])      = SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n])), k the largest power of 2 below n
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256


def leaf_hash(data: bytes) -> bytes:
    # Leaves and nodes are hashed with different prefixes, so that no node can pass for a leaf.
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """The right edge of a growing tree: enough to append leaves and to compute the root."""

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = ()) -> None:
        """Start from a tree of `size` leaves.

        Args:
            size: number of leaves.
            peaks: roots of the full subtrees, one per bit set in `size`, the largest first.
        """
        self.size = size
        self.peaks = list(peaks)

    def append(self, leaf: bytes) -> None:
        """Add a leaf, given by its hash."""
        node, size = leaf, self.size
        # A binary carry: each trailing one bit is a full subtree that the new node completes.
        while size & 1:
            node = node_hash(self.peaks.pop(), node)
            size >>= 1
        self.peaks.append(node)
        self.size += 1

    def root(self) -> bytes:
        if not self.peaks:
            return sha256().digest()
        # From the smallest subtree up, because MTH splits off the largest power of two first.
        node = self.peaks[-1]
        for left in reversed(self.peaks[:-1]):
            node = node_hash(left, node)
        return node


def root_of(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaf hashes."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    return frontier.root()


def inclusion_proof(leaves: Sequence[bytes], index: int) -> list[bytes]:
    """Return the audit path PATH(index, D[n]) that leads from a leaf to the root, lowest first.

    Raises:
        ValueError: `index` is not that of a leaf.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no leaf {index}")
    if len(leaves) == 1:
        return []
    k = 1 << (len(leaves) - 1).bit_length() - 1  # the largest power of two below n
    if index < k:
        return [*inclusion_proof(leaves[:k], index), root_of(leaves[k:])]
    return [*inclusion_proof(leaves[k:], index - k), root_of(leaves[:k])]


def includes(root: bytes, size: int, leaf: bytes, index: int, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that `leaf` stands at `index` in the tree of `size` leaves."""
    if not 0 <= index < size:
        return False
    sides = list(_yield_sides(index, size - 1))
    if len(sides) != len(proof):
        return False
    node = leaf
    for sibling_is_left, sibling in zip(sides, proof, strict=True):
        node = node_hash(sibling, node) if sibling_is_left else node_hash(node, sibling)
    return node == root


def _yield_sides(index: int, last: int) -> Iterator[bool]:
    """Yield, from a leaf up to the root, whether the sibling is the left one."""
    while last:
        if index & 1 or index < last:  # else the last node has no sibling on this level
            yield bool(index & 1)
        index, last = index >> 1, last >> 1
