"""Train the model that tells how harmful a request reads, and write its weights.

    python tools/train_request_model.py DATA_DIR

It learns from the requests of the reviewer of waltzrl-smollm2 whose role is to train: texts of ours
and the public sets that the README of that package lists, which DATA_DIR holds. The development
splits of the harmless questions and of their harmful twins are added, and the examples and twins of
rules and frames. The same data give the same bytes. scikit-learn is needed here and nowhere else.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from linear_training import Example, Linear
from sklearn.metrics import roc_auc_score

from waltzrl.agents.request import request_findings
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules.frames import load_shipped_frames
from waltzrl.agents.rules.request_model import WEIGHTS, request_features
from waltzrl.records import Message, Prompt

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "packages/waltzrl-smollm2" / part) for part in ("training", "src")]

from data import Exchange, exchanges  # noqa: E402 - found through the path above

OURS = (
    ("harmless_questions", False),
    ("harmless_questions_2", False),
    ("harmful_twins", True),
    ("harmful_twins_2", True),
)
TWIN_WEIGHT = 3.0
"""Of a harmful twin, as there are few."""
FEATURES = 20_000
INVERSE_PENALTY = 20.0
BINS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def main(data: Path) -> None:
    rows = exchanges(data)
    examples = [*requests(rows["train"]), *development(), *twins()]
    model = Linear(examples, request_features, limit=FEATURES, inverse_penalty=INVERSE_PENALTY)
    learnt_from = {one.text for one in examples}
    for role in ("validate", "test"):
        unseen = [one for one in requests(rows[role]) if one.text not in learnt_from]
        measure(role, model, unseen)
    path = model.save("waltzrl/agents/rules", WEIGHTS)
    print(Counter((one.source, one.positive) for one in examples))
    print(f"wrote {path} ({path.stat().st_size} bytes)")


def requests(rows: Iterable[Exchange]) -> Iterator[Example]:
    """Yield every labelled request once."""
    seen = set[str]()
    for row in rows:
        if row.harmful is not None and row.request not in seen:
            seen.add(row.request)
            yield Example(text=row.request, positive=row.harmful, source=row.source)


def development() -> Iterator[Example]:
    """Yield the development splits of the questions that the rules are tested with."""
    for name, harmful in OURS:
        lines = (ROOT / f"tests/agents/{name}.jsonl").read_text("utf-8").splitlines()
        for row in map(json.loads, lines):
            if row["split"] == "development":
                weight = TWIN_WEIGHT if harmful else 1.0
                yield Example(text=row["text"], positive=harmful, source=name, weight=weight)


def twins() -> Iterator[Example]:
    """Yield the example and the twins of every rule and frame."""
    for rule in load_rulebook().rules:
        if rule.side == "request":
            yield Example(text=rule.example, positive=True, source="rules", weight=TWIN_WEIGHT)
            for twin in rule.twins:
                yield Example(text=twin, positive=False, source="rules")
    for frame in load_shipped_frames():
        yield Example(text=frame.example, positive=False, source="frames")
        for twin in frame.twins:
            yield Example(text=twin, positive=True, source="frames", weight=TWIN_WEIGHT)


def measure(role: str, model: Linear, examples: list[Example]) -> None:
    """Print the AUROC and, of the requests that a rule flags, the precision by probability."""
    probabilities = model.probabilities(examples)
    truth = [one.positive for one in examples]
    print(f"{role}: {len(examples)} requests, AUROC {roc_auc_score(truth, probabilities):.3f}")
    rulebook, rights = load_rulebook(), {low: Counter[bool]() for low in BINS}
    for one, probability in zip(examples, probabilities, strict=True):
        prompt = Prompt(id="", messages=(Message(role="user", content=one.text),))
        if any(finding.severity > 0.3 for finding in request_findings(rulebook, prompt)):
            rights[max(low for low in BINS if low <= probability)][one.positive] += 1
    for low, right in rights.items():
        precision = right[True] / max(right.total(), 1)
        print(f"  flagged from {low:.1f}: {right.total()}, precision {precision:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
