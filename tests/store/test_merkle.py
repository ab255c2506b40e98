import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.store.audit.merkle import (
    Frontier,
    includes,
    inclusion_proof,
    leaf_hash,
    node_hash,
    root_of,
)

# The leaves and roots with which Certificate Transparency's own implementations test RFC 6962.
VECTORS = (
    ("", "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
    ("00", "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125"),
    ("10", "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77"),
    ("2021", "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7"),
    ("3031", "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4"),
    ("40414243", "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef"),
    ("5051525354555657", "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c"),
    (
        "606162636465666768696a6b6c6d6e6f",
        "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
    ),
)

sizes = st.integers(1, 70)


def leaves_of(size):
    return [leaf_hash(str(number).encode()) for number in range(size)]


def naive_root(leaves):
    """MTH as the RFC defines it."""
    if len(leaves) == 1:
        return leaves[0]
    k = 1
    while 2 * k < len(leaves):
        k *= 2
    return node_hash(naive_root(leaves[:k]), naive_root(leaves[k:]))


def test_roots_are_those_of_certificate_transparency():
    frontier = Frontier()
    assert frontier.root() == hashlib.sha256(b"").digest()
    for leaf, root in VECTORS:
        frontier.append(leaf_hash(bytes.fromhex(leaf)))
        assert frontier.root().hex() == root


def test_proofs_are_those_of_the_example_in_rfc_6962():
    # The tree of section 2.1.3: seven leaves a b c d e f j under g h i, k l, and the root.
    a, b, c, d, e, f, j = leaves = leaves_of(7)
    g, h, i = node_hash(a, b), node_hash(c, d), node_hash(e, f)
    k, m = node_hash(g, h), node_hash(i, j)
    assert root_of(leaves) == node_hash(k, m)
    assert inclusion_proof(leaves, 0) == [b, h, m]
    assert inclusion_proof(leaves, 3) == [c, g, m]
    assert inclusion_proof(leaves, 4) == [f, j, k]
    assert inclusion_proof(leaves, 6) == [i, k]


@given(sizes)
def test_the_frontier_knows_the_root(size):
    leaves = leaves_of(size)
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    assert frontier.root() == naive_root(leaves)
    assert len(frontier.peaks) == size.bit_count()
    resumed = Frontier(frontier.size, frontier.peaks)
    resumed.append(leaves[0])
    assert resumed.root() == naive_root([*leaves, leaves[0]])


@given(st.data(), sizes)
def test_an_inclusion_proof_proves_its_leaf_and_no_other(data, size):
    leaves = leaves_of(size)
    index = data.draw(st.integers(0, size - 1))
    root, proof = naive_root(leaves), inclusion_proof(leaves, index)
    assert includes(root, size, leaves[index], index, proof)
    assert not includes(root, size, leaf_hash(b"another"), index, proof)
    assert not includes(root, size, leaves[index], index, [*proof, root])
    assert not includes(root, size, leaves[index], size, proof)
    other = data.draw(st.integers(0, size - 1))
    assert includes(root, size, leaves[index], other, proof) == (other == index)


def test_there_is_no_proof_of_what_is_not_there():
    with pytest.raises(ValueError, match="no leaf 3"):
        inclusion_proof(leaves_of(3), 3)
