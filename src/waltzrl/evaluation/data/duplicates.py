"""Exact and near duplicates of prompts, and the gate that keeps test prompts out of training.

Near duplicates are found by MinHash (Broder, 1997) with banding: prompts whose signatures agree
in a whole band are candidates, and the exact Jaccard similarity of their shingles decides.
"""

import hashlib
import re
import struct
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from waltzrl.errors import InputError
from waltzrl.records import Prompt

HASHES = 64
BAND = 4
"""Rows per band. With 16 bands of 4, a pair of similarity 0.7 is found with probability 0.988 and
one of 0.8 with 0.9998: 1 - (1 - s^4)^16."""
NEAR = 0.7
"""Similarity from which two prompts count as the same question; bands would miss some of less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leak:
    """A test prompt, and the training prompt that it is closest to."""

    train: Prompt
    test: Prompt
    similarity: float
    """Jaccard similarity of the two prompts' shingles, at most 1."""


def require_disjoint(train: Sequence[Prompt], test: Sequence[Prompt]) -> None:
    """Raise an error if a test prompt is, nearly word for word, a training prompt.

    Raises:
        InputError: `leaks` found something; names the first pair and how many there are.
    """
    leaked = leaks(train, test)
    if leaked:
        first = leaked[0]
        raise InputError(
            f"{len(leaked)} of {len(test)} test prompts are in the training prompts; first: test "
            f"{first.test.id!r} is train {first.train.id!r} (similarity {first.similarity:.2f}): "
            f"{text_of(first.test)[:80]!r}; remove such prompts from one of the two"
        )


def leaks(train: Sequence[Prompt], test: Sequence[Prompt]) -> list[Leak]:
    """Find the test prompts that are, exactly or nearly, among the training prompts.

    Args:
        train: what was, or will be, learned from.
        test: a held-out split or an imported benchmark.

    Returns:
        One leak for each affected test prompt, in the order of `test`.
    """
    index = _Index()
    for prompt in train:
        index.add(prompt)
    closest = ((prompt, *index.closest(prompt)) for prompt in test)
    return [
        Leak(train=earlier, test=prompt, similarity=similarity)
        for prompt, earlier, similarity in closest
        if earlier is not None and similarity >= NEAR
    ]


def near_duplicates(prompts: Iterable[Prompt]) -> list[Leak]:
    """Pair every prompt that is nearly an earlier one, the leak's `train`, with the closest.

    A prompt that was paired counts as left out: later ones are compared with those that stay.
    """
    index = _Index()
    repeated = []
    for prompt in prompts:
        earlier, similarity = index.closest(prompt)
        if earlier is not None and similarity >= NEAR:
            repeated.append(Leak(train=earlier, test=prompt, similarity=similarity))
        else:
            index.add(prompt)
    return repeated


def text_of(prompt: Prompt) -> str:
    """The conversation without its system messages, which whole sets have in common."""
    return "\n".join(m.content for m in prompt.messages if m.role != "system")


def normalise_text(text: str) -> str:
    """Keep letters and digits: one form (NFKC), one case, single spaces, no punctuation.

    Of a text without any, keep the symbols, such as emoji.
    """
    folded = unicodedata.normalize("NFKC", text).casefold()
    words = re.findall(r"[^\W_]+", folded)
    return " ".join(words) or "".join(c for c in folded if unicodedata.category(c)[0] == "S")


def split_into_shingles(text: str) -> frozenset[str]:
    """The words of the normalised text and its pairs of neighbouring words."""
    words = normalise_text(text).split(" ")
    return frozenset(words) | {f"{left} {right}" for left, right in pairwise(words)}


def jaccard(left: frozenset[str], right: frozenset[str]) -> float:
    """Shared shingles over all shingles: |A n B| / |A u B|."""
    shared = len(left & right)
    return shared / (len(left) + len(right) - shared)


def signature(shingle_set: frozenset[str]) -> tuple[int, ...]:
    """MinHash: the smallest value of each of 64 hash functions over the shingles.

    Two signatures agree in each place with probability equal to their sets' Jaccard similarity.

    Args:
        shingle_set: at least one shingle.

    Returns:
        [HASHES] unsigned 32-bit numbers, the same on every machine.
    """
    return tuple(map(min, zip(*map(_hash_shingle, shingle_set), strict=True)))


# The same words recur in many prompts.
@lru_cache(maxsize=8192)
def _hash_shingle(shingle: str) -> tuple[int, ...]:
    # A prompt may hold lone surrogates, which plain UTF-8 refuses.
    digest = hashlib.shake_128(shingle.encode("utf-8", "surrogatepass")).digest(4 * HASHES)
    return struct.unpack(f"<{HASHES}I", digest)


def _cut_bands(shingle_set: frozenset[str]) -> Iterable[tuple[int, ...]]:
    """Cut the signature in bands; each starts with its own number, so bands never mix."""
    minima = signature(shingle_set)
    return ((start, *minima[start : start + BAND]) for start in range(0, HASHES, BAND))


class _Index:
    """Prompts by the bands of their signatures."""

    def __init__(self) -> None:
        self._added: list[tuple[Prompt, frozenset[str]]] = []
        self._bands: dict[tuple[int, ...], list[int]] = defaultdict(list)

    def add(self, prompt: Prompt) -> None:
        own = split_into_shingles(text_of(prompt))
        for band in _cut_bands(own):
            self._bands[band].append(len(self._added))
        self._added.append((prompt, own))

    def closest(self, prompt: Prompt) -> tuple[Prompt | None, float]:
        """Return the candidate that is most similar, and how similar; None if there is none."""
        own = split_into_shingles(text_of(prompt))
        candidates = {place for band in _cut_bands(own) for place in self._bands.get(band, ())}
        # Negated, so that of several equally similar prompts the first counts.
        scored = [(jaccard(own, self._added[place][1]), -place) for place in candidates]
        if not scored:
            return None, 0.0
        similarity, place = max(scored)
        return self._added[-place][0], similarity
