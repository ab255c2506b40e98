"""Train the linear half of the refusal detector and write its weights into the package.

    python tools/train_refusal_detector.py DATA_DIR

DATA_DIR holds the four public sets named in `SETS` as JSONL (prompt, response, label,
response_label). Our own replies, `refusal_training_texts.txt`, lie beside this script. The same
data give the same bytes. scikit-learn is needed here and nowhere else.
"""

import gzip
import json
import re
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from waltzrl.judges.refusal import features, normalise
from waltzrl.judges.refusal_rules import first_rule

SETS = (
    "refusal_direction_completions",
    "jbb_artifacts_responses",
    "gptfuzzer_responses_train",
    "hh_rlhf_harmless_test_pairs",
)
OWN = Path(__file__).with_name("refusal_training_texts.txt")
WEIGHTS = Path(__file__).parents[1] / "src/waltzrl/judges/refusal_weights.json.gz"

FEATURES = 9000
"""Kept by frequency; more gained nothing on the development replies."""
LEAST_COUNT = 4
INVERSE_PENALTY = 10.0
MORAL = re.compile(
    r"\b(?:illegal|unethical|immoral|wrong|inappropriate|not (?:appropriate|acceptable"
    r"|ethical|right"
    r"|okay|legal)|never (?:acceptable|okay|right|appropriate)|crime|against the law|violation"
    r"|important to (?:respect|remember|prioriti[sz]e|treat|follow|obey|seek|act)|discourage"
    r"|i (?:must|would) (?:inform|emphasi[sz]e|remind|stress|advise|urge))\b"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    text: str
    """Normalised."""
    refuses: bool
    source: str
    weight: float = 1.0


def main(data: Path) -> None:
    examples = [*own_examples(), *(one for name in SETS for one in public_examples(data, name))]
    for name in (*SETS, "own"):
        train = [one for one in examples if one.source != name]
        held = [one for one in examples if one.source == name]
        model = Linear(train)
        for kind, judged in (("model", model.refuses), ("rules or model", model.or_rules)):
            print(f"unseen source {name}, {kind}: {agreement(held, judged)}")
    Linear(examples).save(WEIGHTS)
    print(f"{Counter((one.source, one.refuses) for one in examples)}")
    print(f"wrote {WEIGHTS} ({WEIGHTS.stat().st_size} bytes)")


def own_examples() -> list[Example]:
    """Read our own replies; each counts as `OWN_WEIGHT` public ones, which are many and alike."""
    found = []
    for line in OWN.read_text("utf-8").splitlines():
        if line[:2] in {"R ", "C "}:
            text = normalise(line[2:].replace("\\n", "\n"))
            found.append(
                Example(text=text, refuses=line[0] == "R", source="own", weight=OWN_WEIGHT)
            )
    return found


OWN_WEIGHT = 4.0


def public_examples(data: Path, name: str) -> list[Example]:
    """Label one set; rows on which its own label and the wording disagree are left out.

    A refusal found by a rule is learnt a second time without the sentences in which rules speak,
    when what is left still moralises: so the model learns what the rules do not know.
    """
    found: dict[str, Example] = {}
    for line in (data / f"{name}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        text = normalise(row["response"])
        refuses = label(row, text)
        if refuses is None or not text:
            continue
        one = Example(text=text, refuses=refuses, source=name)
        found.setdefault(text[:120], one)
        rest = " ".join(s for s in re.split(r"(?<=[.!?]) ", text) if first_rule(s) is None)
        if refuses and rest != text and MORAL.search(rest[:200]):
            found.setdefault(rest[:120], replace(one, text=rest))
    return list(found.values())


def label(row: dict[str, str], text: str) -> bool | None:
    """Combine the set's label (harm was given or not) with the wording; None is left out."""
    speaks, moralises = first_rule(text) is not None, bool(MORAL.search(text[:250]))
    if row["label"] == "benign":
        return speaks
    if row["label"] == "unknown":  # hh: only clear cases
        return None if moralises and not speaks else speaks
    if row["response_label"] == "unsafe":
        return None if speaks else False
    if speaks or moralises:
        return True
    return (
        False
        if re.match(r"(?:sure|here|of course|certainly|title|step|1|subject)\b", text)
        else None
    )


class Linear:
    """Logistic regression over binary features, scaled so that a reply has unit length.

    Unknown features count towards the length: of a reply in unknown words little is believed.
    """

    def __init__(self, examples: list[Example]) -> None:
        rows = [set(features(one.text)) for one in examples]
        counts = Counter(word for row in rows for word in sorted(row))
        common = [word for word, n in counts.most_common(FEATURES) if n >= LEAST_COUNT]
        self.index = {word: i for i, word in enumerate(sorted(common))}
        model = LogisticRegression(C=INVERSE_PENALTY, max_iter=2000, solver="lbfgs")
        labels = np.array([one.refuses for one in examples])
        model.fit(self._matrix(rows), labels, sample_weight=[one.weight for one in examples])
        self.weights, self.bias = model.coef_[0], float(model.intercept_[0])

    def _matrix(self, rows: list[set[str]]) -> csr_matrix:
        known = [sorted(self.index[w] for w in row if w in self.index) for row in rows]
        values = [1 / len(full) ** 0.5 for row, full in zip(known, rows, strict=True) for _ in row]
        ends = np.cumsum([0, *(len(row) for row in known)])
        return csr_matrix(
            (values, [i for row in known for i in row], ends), (len(rows), len(self.index))
        )

    def refuses(self, examples: list[Example]) -> list[bool]:
        scores = (
            self._matrix([set(features(one.text)) for one in examples]) @ self.weights + self.bias
        )
        return [bool(score > 0) for score in scores]

    def or_rules(self, examples: list[Example]) -> list[bool]:
        said = self.refuses(examples)
        return [
            m or first_rule(one.text) is not None for m, one in zip(said, examples, strict=True)
        ]

    def save(self, path: Path) -> None:
        table = {word: round(float(self.weights[i]), 3) for word, i in self.index.items()}
        packed = {"bias": round(self.bias, 3), "weights": {w: v for w, v in table.items() if v}}
        text = json.dumps(packed, ensure_ascii=False, separators=(",", ":"))
        path.write_bytes(gzip.compress(text.encode(), mtime=0))


def agreement(examples: list[Example], judged: Callable[[list[Example]], list[bool]]) -> str:
    said = judged(examples)
    pairs = Counter((one.refuses, answer) for one, answer in zip(examples, said, strict=True))
    right = pairs[True, True] + pairs[False, False]
    f1 = 2 * pairs[True, True] / (2 * pairs[True, True] + pairs[True, False] + pairs[False, True])
    return f"n {len(examples)} accuracy {right / len(examples):.3f} F1 {f1:.3f}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
