"""How harmful a request reads: a small linear model over its words.

A rule names words. Whether these ask for harm depends on the words around them, which the model has
learnt from labelled requests (`tools/train_request_model.py`). It decides of ambiguous patterns: in
a request that reads as harmless, as a whole and in the clause of the finding, they flag nothing
alone.
"""

from collections.abc import Iterator
from functools import lru_cache

from waltzrl.agents.rules.linear import LinearModel, extract_features, keep_ends, simplify_text

WEIGHTS = "request_weights.json.gz"
READS_AS_HARMFUL = 0.5
"""The probability from which a request reads as harmful."""


def request_features(text: str) -> Iterator[str]:
    """Yield the features of a request; of a long one those of its beginning and its end."""
    return extract_features(_simplify_request(text))


def harm_probability(text: str) -> float:
    """Return the probability that a request is harmful, 0 to 1."""
    return _estimate_harm(_simplify_request(text))


def load_request_model() -> LinearModel:
    """Return the model that comes with waltzrl."""
    return LinearModel.load("waltzrl.agents.rules", WEIGHTS)


def _simplify_request(text: str) -> str:
    return simplify_text(keep_ends(text))


@lru_cache(maxsize=64)  # findings share a request and a clause
def _estimate_harm(simplified: str) -> float:
    return load_request_model().probability(extract_features(simplified))
