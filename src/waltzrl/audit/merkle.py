"""The Merkle tree of RFC 6962 (Certificate Transparency), section 2.1: roots and proofs.

MTH({})        = SHA-256()
MTH({d})       = SHA-256(0x00 || d)
MTH(D[n])      = SHA-256(0x01 || MTH(D[0:k]) || MTH(D[k:n])), k the largest power of 2 below n
"""

from collections.abc import Iterator, Sequence
from hashlib import sha256


def leaf_hash(data: bytes) -> bytes:
    return sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """The right edge of a growing tree: all that is needed to append a leaf and tell the root."""

    def __init__(self, size: int = 0, peaks: Sequence[bytes] = ()) -> None:
        """Start at a tree of `size` leaves.

        Args:
            size: leaves so far.
            peaks: roots of the full subtrees, one per bit set in `size`, the largest first.
        """
        self.size = size
        self.peaks = list(peaks)

    def append(self, leaf: bytes) -> None:
        """Add a leaf, given by its hash."""
        node, size = leaf, self.size
        while size & 1:
            node = node_hash(self.peaks.pop(), node)
            size >>= 1
        self.peaks.append(node)
        self.size += 1

    def root(self) -> bytes:
        if not self.peaks:
            return sha256().digest()
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
        ValueError: there is no such leaf.
    """
    if not 0 <= index < len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves has no leaf {index}")
    if len(leaves) == 1:
        return []
    k = _split(len(leaves))
    if index < k:
        return [*inclusion_proof(leaves[:k], index), root_of(leaves[k:])]
    return [*inclusion_proof(leaves[k:], index - k), root_of(leaves[:k])]


def includes(root: bytes, size: int, leaf: bytes, index: int, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that `leaf` stands at `index` in the tree of `size` leaves."""
    if not 0 <= index < size:
        return False
    sides = list(_sides(index, size - 1))
    if len(sides) != len(proof):
        return False
    node = leaf
    for left, beside in zip(sides, proof, strict=True):
        node = node_hash(beside, node) if left else node_hash(node, beside)
    return node == root


def consistency_proof(leaves: Sequence[bytes], old_size: int) -> list[bytes]:
    """Return PROOF(old_size, D[n]): that the tree grew from its first `old_size` leaves.

    Raises:
        ValueError: the old tree is empty or the larger one.
    """
    if not 0 < old_size <= len(leaves):
        raise ValueError(f"a tree of {len(leaves)} leaves did not grow from one of {old_size}")
    return _subproof(leaves, old_size, whole=True)


def grew(old_root: bytes, old_size: int, root: bytes, size: int, proof: Sequence[bytes]) -> bool:
    """Whether `proof` shows that the tree of `size` leaves begins with the older tree."""
    if not 0 < old_size < size:
        return old_size == size and not proof and old_root == root
    index, last = old_size - 1, size - 1
    while index & 1:  # climb to the top of the old tree's last full subtree
        index, last = index >> 1, last >> 1
    nodes = proof if index else [old_root, *proof]  # a lone full subtree is the old tree itself
    sides = list(_sides(index, last))
    if len(sides) != len(nodes) - 1:
        return False
    old_node = new_node = nodes[0]
    for left, beside in zip(sides, nodes[1:], strict=True):
        old_node = node_hash(beside, old_node) if left else old_node
        new_node = node_hash(beside, new_node) if left else node_hash(new_node, beside)
    return (old_node, new_node) == (old_root, root)


def _sides(index: int, last: int) -> Iterator[bool]:
    """Yield, from a leaf up to the root, whether the node beside stands left."""
    while last:
        if index & 1 or index < last:  # else it is the last node, and alone
            yield bool(index & 1)
        index, last = index >> 1, last >> 1


def _subproof(leaves: Sequence[bytes], old_size: int, *, whole: bool) -> list[bytes]:
    """SUBPROOF(m, D[n], b); `whole` while the old tree's root is known to the checker."""
    if old_size == len(leaves):
        return [] if whole else [root_of(leaves)]
    k = _split(len(leaves))
    if old_size <= k:
        return [*_subproof(leaves[:k], old_size, whole=whole), root_of(leaves[k:])]
    return [*_subproof(leaves[k:], old_size - k, whole=False), root_of(leaves[:k])]


def _split(size: int) -> int:
    """Return the largest power of two below `size`, which is 2 or more."""
    return 1 << (size - 1).bit_length() - 1
