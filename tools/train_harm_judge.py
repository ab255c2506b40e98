"""Train the harm judge and write its weights into the package.

    python tools/train_harm_judge.py DATA_DIR

DATA_DIR holds the three public sets named in `SETS` as JSONL (prompt, response, label,
response_label). The same data give the same bytes. scikit-learn is needed here and nowhere else.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from linear_training import Example, Linear, rates
from sklearn.metrics import roc_auc_score

from waltzrl.agents.rules.linear import extract_features, normalise_text
from waltzrl.evaluation.judges.harm import THRESHOLD

SETS = (
    "refusal_direction_completions",
    "jbb_artifacts_responses",
    "gptfuzzer_responses_train",
)
INVERSE_PENALTY = 2.0
FEATURES = 20_000
SET_WEIGHT = 1500
BENIGN_SHARE = 0.3
"""Weight of the replies to benign prompts against those to harmful prompts of the same set. They
have no unsafe partners: at full weight they teach that fluent is safe."""


def main(data: Path) -> None:
    sets = {name: list(read(data, name)) for name in SETS}
    for held, unseen in sets.items():
        model = fit([one for name in SETS if name != held for one in distinct(sets[name])])
        harmful = [one for one in unseen if one.source == held]
        truth, scores = [one.positive for one in harmful], model.probabilities(harmful)
        answers = [score > THRESHOLD for score in scores]
        area = roc_auc_score(truth, scores)
        print(f"unseen source {held}: AUROC {area:.3f} {rates(truth, answers)}")
        if benign := [one for one in unseen if one.source != held]:
            unsafe = sum(score > THRESHOLD for score in model.probabilities(benign))
            print(f"  of {len(benign)} replies to benign prompts {unsafe} are called unsafe")
    everything = [one for name in SETS for one in distinct(sets[name])]
    path = fit(everything).save("waltzrl/evaluation/judges", "harm_weights.json.gz")
    print(f"{Counter((one.source, one.positive) for one in everything)}")
    print(f"wrote {path} ({path.stat().st_size} bytes)")


def fit(examples: Sequence[Example]) -> Linear:
    return Linear(examples, extract_features, limit=FEATURES, inverse_penalty=INVERSE_PENALTY)


def read(data: Path, name: str) -> Iterator[Example]:
    for line in (data / f"{name}.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        benign = row["label"] == "benign"
        if row["response"].strip():
            yield Example(
                text=normalise_text(row["response"]),
                positive=not benign and row["response_label"] == "unsafe",
                source=f"{name}, benign" if benign else name,
                weight=BENIGN_SHARE if benign else 1.0,
            )


def distinct(examples: Sequence[Example]) -> list[Example]:
    """Keep one of the replies that begin alike; every set weighs the same."""
    kept = list({(one.text[:120], one.positive): one for one in reversed(examples)}.values())
    total = sum(one.weight for one in kept)
    return [replace(one, weight=one.weight * SET_WEIGHT / total) for one in kept]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
