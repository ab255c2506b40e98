"""Fit a `LinearModel` with scikit-learn, measure it, and write its weights into the package."""

import gzip
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

SOURCE = Path(__file__).parents[1] / "src"
LEAST_COUNT = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    text: str
    """As the features are extracted from it."""
    positive: bool
    source: str
    weight: float = 1.0
    prompt: str = ""
    """Normalised too."""


class Linear:
    """Logistic regression over binary features, scaled so that a text has unit length.

    Unknown features count towards the length, as in `LinearModel`.
    """

    def __init__(
        self,
        examples: Sequence[Example],
        features: Callable[[str], Iterable[str]],
        *,
        limit: int,
        inverse_penalty: float,
    ) -> None:
        """Fit the weights of the `limit` most frequent features."""
        self._features = features
        rows = [set(features(one.text)) for one in examples]
        counts = Counter(word for row in rows for word in sorted(row))
        common = [word for word, n in counts.most_common(limit) if n >= LEAST_COUNT]
        self._index = {word: i for i, word in enumerate(sorted(common))}
        model = LogisticRegression(C=inverse_penalty, max_iter=2000, solver="lbfgs")
        labels = np.array([one.positive for one in examples])
        model.fit(self._matrix(rows), labels, sample_weight=[one.weight for one in examples])
        self._weights, self._bias = model.coef_[0], float(model.intercept_[0])

    def _matrix(self, rows: list[set[str]]) -> csr_matrix:
        known = [sorted(self._index[w] for w in row if w in self._index) for row in rows]
        values = [1 / len(full) ** 0.5 for row, full in zip(known, rows, strict=True) for _ in row]
        ends = np.cumsum([0, *(len(row) for row in known)])
        return csr_matrix(
            (values, [i for row in known for i in row], ends), (len(rows), len(self._index))
        )

    def probabilities(self, examples: Sequence[Example]) -> list[float]:
        rows = self._matrix([set(self._features(one.text)) for one in examples])
        return list(1 / (1 + np.exp(-(rows @ self._weights) - self._bias)))

    def save(self, package: str, name: str) -> Path:
        weights = {word: float(self._weights[i]) for word, i in self._index.items()}
        return save_weights(package, name, weights, self._bias)


def save_weights(package: str, name: str, weights: Mapping[str, float], bias: float) -> Path:
    """Write weights, rounded, as `LinearModel.load` reads them."""
    table = {word: round(weight, 3) for word, weight in weights.items()}
    packed = {"bias": round(bias, 3), "weights": {w: v for w, v in table.items() if v}}
    text = json.dumps(packed, ensure_ascii=False, separators=(",", ":"))
    path = SOURCE / package / name
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


def rates(truth: Sequence[bool], answers: Sequence[bool]) -> str:
    """Return accuracy, precision, recall and F1 as text."""
    cells = Counter(zip(truth, answers, strict=True))
    found, missed, false = cells[True, True], cells[True, False], cells[False, True]
    accuracy = (found + cells[False, False]) / len(truth)
    return (
        f"n {len(truth)} accuracy {accuracy:.3f} precision {found / max(1, found + false):.3f} "
        f"recall {found / max(1, found + missed):.3f} "
        f"F1 {2 * found / max(1, 2 * found + missed + false):.3f}"
    )
