"""The words of a reply, and a small linear model over them, in plain Python."""

import gzip
import hashlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from itertools import pairwise

HEAD = 700
TAIL = 160
"""Characters read from each end; the middle of a long reply seldom changes the verdict."""

_STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d\u00ab\u00bb", "''" + '"' * 4)
"""Typographic quotation marks to ASCII ones."""
_EXPANSIONS = (
    (re.compile(r"\bcan(?: not|'t|t)\b"), "cannot"),
    (re.compile(r"\bwon't\b"), "will not"),
    (re.compile(r"n't\b"), " not"),
    (re.compile(r"'m\b"), " am"),
    (re.compile(r"'re\b"), " are"),
    (re.compile(r"'ll\b"), " will"),
    (re.compile(r"'ve\b"), " have"),
    (re.compile(r"'d\b"), " would"),
    (re.compile(r"\b(it|that|there|here)'s\b"), r"\1 is"),
    (re.compile(r" +(?=[,.!?;:])"), ""),
    # This is the last, because it reads the expanded words: such phrases decline nothing.
    (re.compile(r"\bcannot (wait|help but|\w+[^.!?]{0,40}? enough)\b"), r"gladly \1"),
)
_QUOTATION = re.compile(r'(?<=[\s:(])"[^"]{1,400}"|```.*?(?:```|$)')
_WORD = re.compile(r"[^\W_]+|[!?.,:*]")


class LinearModel:
    """Logistic regression over the features of a text, scaled so that a text has unit length.

    Unknown features count towards the length: of a text in unknown words little is believed.
    """

    def __init__(self, weights: Mapping[str, float], bias: float, digest: str) -> None:
        self._weights, self._bias = weights, bias
        self.digest = digest
        """The digest of the weights, 64 hexadecimal digits."""

    @classmethod
    @cache
    def load(cls, package: str, name: str) -> "LinearModel":
        """Read the weights `name` that a package of ours ships."""
        packed = (files(package) / name).read_bytes()
        model = json.loads(gzip.decompress(packed))
        return cls(model["weights"], model["bias"], hashlib.sha256(packed).hexdigest())

    @property
    def features(self) -> Iterable[str]:
        """The names of the features that it knows."""
        return self._weights.keys()

    def probability(self, features: Iterable[str]) -> float:
        """Return the probability of the positive class; 0 for a text without features."""
        active = scale_to_unit(features)
        return self.probability_of(active) if active else 0.0

    def probability_of(self, values: Mapping[str, float]) -> float:
        """Return the probability of the positive class for features with values of their own."""
        # `fsum` is exact in any order, and that of a set of texts differs from process to process.
        total = math.fsum(value * self._weights.get(name, 0.0) for name, value in values.items())
        return 1 / (1 + math.exp(-self._bias - total))


def scale_to_unit(features: Iterable[str]) -> dict[str, float]:
    """Return the value of each different feature, all the same, scaled to the length 1."""
    active = set(features)
    return dict.fromkeys(active, 1 / math.sqrt(len(active))) if active else {}


def normalise_text(text: str) -> str:
    """Lower the text, expand contractions, and drop code and quotations after the start.

    Only the first `HEAD` and the last `TAIL` characters are read, so the cost is bounded. A
    quotation at the very start stays, because some replies are wrapped in quotation marks.
    """
    return _QUOTATION.sub("quotation", simplify_text(keep_ends(text.strip())))


def keep_ends(text: str) -> str:
    """Return the first `HEAD` and the last `TAIL` characters of a longer text."""
    return text if len(text) <= HEAD + TAIL else f"{text[:HEAD]} ... {text[-TAIL:]}"


def simplify_text(text: str) -> str:
    """Lower the text, expand contractions and straighten quotation marks and white space."""
    text = " ".join(text.translate(_STRAIGHT).lower().split())
    for pattern, expansion in _EXPANSIONS:
        text = pattern.sub(expansion, text)
    return text


def extract_features(normalised: str) -> Iterator[str]:
    """Yield words, pairs and triples of adjacent words, and the opening words marked as such."""
    words = _WORD.findall(normalised)
    yield from words
    yield from map(" ".join, pairwise(words))
    yield from map(" ".join, zip(words, words[1:], words[2:], strict=False))
    opening = words[:24]
    yield from (f"^{word}" for word in opening)
    yield from (f"^{word} {following}" for word, following in pairwise(opening))
