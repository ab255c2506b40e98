"""Train the model that tells complying replies from safe ones, and write its weights.

    python tools/train_compliance.py DATA_DIR

It learns from replies of ours: those of `compliance_training_replies.jsonl`, the development split
of `tests/agents/replies_to_harmful_requests.jsonl`, and combinations of the parts in
`compliance_training_topics.txt` and `compliance_training_frames.txt`. At a low weight it learns
from the labelled replies of the public sets in `SETS`, which DATA_DIR holds as JSONL (prompt,
response, response_label). The public texts also give the words their vectors, so that a word that
no labelled reply holds counts as its neighbours do. The same data give the same bytes.
"""

import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from linear_training import save_weights
from scipy.sparse import csr_matrix
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction import DictVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from waltzrl.agents.compliance import LONGEST_PIECE, WEIGHTS, compliance_features
from waltzrl.agents.rules import language_of
from waltzrl.agents.rules.linear import simplify_text

TOOLS = Path(__file__).parent
PAIRS = TOOLS.parent / "tests/agents/replies_to_harmful_requests.jsonl"
SETS = (
    "refusal_direction_completions",
    "jbb_artifacts_responses",
    "gptfuzzer_responses_train",
)
"""With labelled replies, under MIT or Apache-2.0."""
TEXTS = (*SETS, "hh_rlhf_harmless_test_pairs")
"""That the vectors are made from."""
MOST_OF_SET = 900
SET_WEIGHT = 400.0
"""Of all replies of a public set; one reply of ours weighs `OWN_WEIGHT`, a combination 1."""
OWN_WEIGHT = 5.0
COMBINATIONS = 14
"""Safe ones and complying ones for each topic."""
DIMENSIONS, SCALE = 40, 10.0
VOCABULARY, LEAST_COUNT = 9_000, 4
WINDOW = 4
INVERSE_PENALTY = 4.0
FOLDS = 6

WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    request: str
    reply: str
    complies: bool
    weight: float
    held_out_with: str = ""
    """What shares a fold in cross-validation; empty for what is always learnt from."""


def main(data: Path) -> None:
    examples = [*own(), *combined(), *public(data)]
    vectors = WordVectors([*texts(data), *(one.reply for one in examples)])
    rows = [vectors.features(one) for one in examples]
    model, names = fit(examples, rows)
    weights = dict(zip(names, model.coef_[0], strict=True))
    path = save_weights(
        "waltzrl/agents", WEIGHTS, vectors.unfolded(weights), float(model.intercept_[0])
    )
    print(Counter(one.complies for one in examples))
    print(f"wrote {path} ({path.stat().st_size} bytes)", flush=True)
    cross_validate(examples, rows)


def own() -> Iterator[Example]:
    """Yield the replies that were written one by one."""
    for path in (TOOLS / "compliance_training_replies.jsonl", PAIRS):
        for row in _rows(path):
            if row.get("split", "development") == "development":
                group = row["request"] or row["reply"]
                yield Example(
                    request=row["request"],
                    reply=row["reply"],
                    complies=row["complies"],
                    weight=OWN_WEIGHT,
                    held_out_with=group,
                )


def combined() -> Iterator[Example]:
    """Yield combinations of parts, the same in every run."""
    draw = random.Random(7)
    parts = frames()
    for topic in topics():
        for _ in range(COMBINATIONS):
            for reply, complies in (
                (_safe(draw, topic, parts), False),
                (_complying(draw, topic, parts), True),
            ):
                yield Example(request=topic["T"][0], reply=reply, complies=complies, weight=1.0)


def topics() -> list[dict[str, list[str]]]:
    """Return the topics: T request, W warnings, P prevention, A offers, C complying sentences."""
    found: list[dict[str, list[str]]] = []
    for line in (TOOLS / "compliance_training_topics.txt").read_text("utf-8").splitlines():
        key, text = line[0], line[2:]
        if key == "T":
            found.append({"T": [text.split(" | ")[1]], "W": [], "P": [], "A": [], "C": []})
        else:
            found[-1][key].append(text)
    return found


def frames() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in (TOOLS / "compliance_training_frames.txt").read_text("utf-8").splitlines():
        if line.startswith("== "):
            parts = found[line[3:]] = []
        elif line and not line.startswith("#"):
            parts.append(line)
    return found


def _safe(draw: random.Random, topic: dict[str, list[str]], parts: dict[str, list[str]]) -> str:
    def some(key: str) -> list[str]:
        return draw.sample(topic[key], draw.choice([1, 1, 2]))

    def maybe(name: str) -> str:
        return draw.choice(["", draw.choice(parts[name])])

    decline, end = draw.choice(parts["declines"]), maybe("ends of safe replies")
    kinds = (
        lambda: [decline, maybe("reasons"), end],
        lambda: [maybe("declines"), *some("W"), end],
        lambda: [maybe("reasons"), *some("W"), *draw.choice([[], some("A")[:1]])],
        lambda: [maybe("leads to prevention"), *some("P"), end],
        lambda: [maybe("leads to an offer"), *some("A"), end],
        lambda: [some("W")[0], some("A")[0], end],
        lambda: [decline, some("W")[0], some("P")[0]],
        lambda: draw.sample(parts["about something else"], draw.choice([1, 1, 2])),
    )
    return " ".join(filter(None, draw.choice(kinds)()))


def _complying(
    draw: random.Random, topic: dict[str, list[str]], parts: dict[str, list[str]]
) -> str:
    order = sorted(draw.sample(range(len(topic["C"])), draw.choice([1, 2, 3, 3, 4, 5])))
    steps = [topic["C"][place] for place in order]

    def one(name: str) -> str:
        return draw.choice(parts[name])

    def maybe(name: str) -> str:
        return draw.choice(["", one(name)])

    def listed() -> list[str]:
        mark = draw.choice(["{}. ", "{}) ", "- ", "* ", "Step {}: ", "**{}.** "])
        lines = [mark.format(number) + step for number, step in enumerate(steps, 1)]
        return ["\n".join([maybe("openings"), *lines])]

    def after_a_no() -> list[str]:
        turn = draw.choice(
            [
                "But if you insist:",
                "Anyway:",
                "That said,",
                "Still, people do it like this.",
                "However, in general terms:",
            ]
        )
        return [draw.choice(parts["declines"] + topic["W"]), turn, *steps]

    kinds = (
        lambda: [maybe("openings"), *steps, maybe("ends of complying replies")],
        lambda: [one("openings"), *steps, maybe("ends of complying replies")],
        listed,
        lambda: [one("caveats"), *steps, maybe("ends of complying replies")],
        after_a_no,
        lambda: [one("fiction"), draw.choice(['"{}"', "{}"]).format(" ".join(steps))],
        lambda: [
            " ".join(
                draw.choice(["First, ", "", "Now ", "Then "]) + step[0].lower() + step[1:]
                for step in steps
            )
        ],
        lambda: steps,
    )
    return " ".join(filter(None, draw.choice(kinds)()))


def public(data: Path) -> Iterator[Example]:
    """Yield the labelled replies to harmful prompts; of those that begin alike one."""
    for name in SETS:
        rows = {
            (row["response"][:120], row["response_label"]): row
            for row in _rows(data / f"{name}.jsonl")
            if row["label"] == "unsafe" and row["response"].strip()
        }
        drawn = sorted(rows.values(), key=lambda row: sha256(row["response"].encode()).digest())
        drawn = drawn[:MOST_OF_SET]
        for row in drawn:
            yield Example(
                request=row.get("goal") or row["prompt"],
                reply=row["response"],
                complies=row["response_label"] == "unsafe",
                weight=SET_WEIGHT / len(drawn),
            )


def texts(data: Path) -> Iterator[str]:
    seen: set[str] = set()
    for name in TEXTS:
        for row in _rows(data / f"{name}.jsonl"):
            for key in ("response", "rejected", "context"):
                text = row.get(key)
                if isinstance(text, str) and text[:80] not in seen:
                    seen.add(text[:80])
                    yield text[:3000]


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


class WordVectors:
    """Vectors of words: the singular vectors of their positive pointwise mutual information."""

    def __init__(self, texts: Sequence[str]) -> None:
        documents = [WORD.findall(simplify_text(text)) for text in texts]
        counts = Counter(word for document in documents for word in document)
        self._words = [word for word, n in counts.most_common(VOCABULARY) if n >= LEAST_COUNT]
        self._index = {word: number for number, word in enumerate(self._words)}
        ranks = np.arange(len(self._words))
        smooth = 1 / (1 + 200 / (ranks + 20))  # of frequent words little is believed
        self._vectors = SCALE * smooth[:, None] * self._factors(documents)

    def _factors(self, documents: Sequence[Sequence[str]]) -> np.ndarray:
        """[words, DIMENSIONS], each of length 1 before the dimensions are cut."""
        near: Counter[tuple[int, int]] = Counter()
        for document in documents:
            ids = [self._index.get(word, -1) for word in document]
            for place, first in enumerate(ids):
                for distance, second in enumerate(ids[place + 1 : place + 1 + WINDOW], 1):
                    if first >= 0 and second >= 0:
                        near[first, second] += 1 / distance
                        near[second, first] += 1 / distance
        cells, values = np.array(list(near)), np.array(list(near.values()))
        size = len(self._words)
        table = csr_matrix((values, cells.T), (size, size)).tocoo()
        total = np.asarray(table.sum(axis=1)).ravel()
        context = total**0.75
        information = np.log(table.data / total[table.row] / (context / context.sum())[table.col])
        kept = information > 0
        positive = csr_matrix((information[kept], (table.row[kept], table.col[kept])), (size, size))
        factors = TruncatedSVD(100, random_state=0).fit_transform(positive)
        factors /= np.linalg.norm(factors, axis=1, keepdims=True) + 1e-9
        return factors[:, :DIMENSIONS]

    def features(self, example: Example) -> dict[str, float]:
        """Return the features of an example, with one vector in the place of its words."""
        values = compliance_features(example.request, example.reply[:LONGEST_PIECE])
        folded = np.zeros(DIMENSIONS)
        for name in [name for name in values if name.startswith("~")]:
            value = values.pop(name)
            if name[1:] in self._index:
                folded += value * self._vectors[self._index[name[1:]]]
        return values | {f"@{number}": float(value) for number, value in enumerate(folded)}

    def unfolded(self, weights: dict[str, float]) -> dict[str, float]:
        """Return the weights with one for each word in the place of those of the vector."""
        vector = np.array([weights.pop(f"@{number}") for number in range(DIMENSIONS)])
        of_words = self._vectors @ vector
        return weights | {f"~{word}": float(of_words[i]) for word, i in self._index.items()}


def fit(
    examples: Sequence[Example], rows: Sequence[dict[str, float]]
) -> tuple[LogisticRegression, list[str]]:
    """Fit the weights of the features that three examples have, and of cues, form and vector."""
    counts = Counter(name for row in rows for name in row)
    known = {name for name, n in counts.items() if n >= 3 or name[0] in "#@"}
    vectorizer = DictVectorizer()
    matrix = vectorizer.fit_transform(
        [{name: value for name, value in row.items() if name in known} for row in rows]
    )
    model = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000)
    weights = [one.weight for one in examples]
    model.fit(matrix, [one.complies for one in examples], sample_weight=weights)
    return model, list(vectorizer.get_feature_names_out())


def cross_validate(examples: Sequence[Example], rows: Sequence[dict[str, float]]) -> None:
    """Print how well replies of ours are told apart by models that did not see their requests."""
    groups = sorted({one.held_out_with for one in examples if one.held_out_with})
    random.Random(0).shuffle(groups)
    fold = {group: number % FOLDS for number, group in enumerate(groups)}
    truth, scores = [], []
    for number in range(FOLDS):
        held = [i for i, one in enumerate(examples) if fold.get(one.held_out_with) == number]
        kept = sorted(set(range(len(examples))).difference(held))
        model, names = fit([examples[i] for i in kept], [rows[i] for i in kept])
        weights = dict(zip(names, model.coef_[0], strict=True))
        for i in held:
            total = sum(value * weights.get(name, 0.0) for name, value in rows[i].items())
            is_foreign = language_of(examples[i].reply) not in ("en", "")
            truth.append(examples[i].complies)
            scores.append(1.0 if is_foreign else 1 / (1 + np.exp(-model.intercept_[0] - total)))
    area = roc_auc_score(truth, scores)
    print(f"cross-validated over {len(groups)} requests of ours: AUROC {area:.3f}")
    for threshold in (0.2, 0.3, 0.4, 0.5):
        flagged = [score >= threshold for score in scores]
        recall = np.mean([f for f, t in zip(flagged, truth, strict=True) if t])
        alarms = np.mean([f for f, t in zip(flagged, truth, strict=True) if not t])
        print(f"  from {threshold}: complying {recall:.3f}, safe {alarms:.3f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
