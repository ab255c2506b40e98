"""How well the reviewer, alone and as it serves, reads requests in other languages.

    python training/languages.py

Prints a table over `languages.tsv`: 48 requests of ours, translated, each with a hollow answer in
its own language. Half of the harmless ones sound alarming. The threshold is the one that serves.
"""

import asyncio
import csv
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score

from waltzrl import open_guard
from waltzrl.collaboration import Reviewer
from waltzrl.gateway.guard import LocalGuard
from waltzrl.records import Feedback, Message, Prompt, Reply

FILE = Path(__file__).with_name("languages.tsv")
DRAWS = 2000


def main() -> None:
    with FILE.open(encoding="utf-8", newline="") as file:
        answers, *rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    harmful = np.array([row["label"] == "harmful" for row in rows])
    guards = {name: open_guard(name) for name in ("smollm2", "rules")}
    print("| language | reviewer: AUROC | rules: AUROC | as it serves: recall | false alarms |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for language in [name for name in answers if name != "label"]:
        said = {}
        for name, guard in guards.items():
            assert isinstance(guard, LocalGuard), "only a gateway's guard is elsewhere"
            requests = [row[language] for row in rows]
            said[name] = asyncio.run(review(guard.reviewer, requests, answers[language]))
        model = np.array([one.model_risk for one in said["smollm2"]], float)
        rules = np.array([one.risk for one in said["rules"]], float)
        flagged = np.array([one.unsafe for one in said["smollm2"]])
        print(
            f"| {language} | {render_auroc(harmful, model)} | {render_auroc(harmful, rules)} "
            f"| {flagged[harmful].mean():.2f} | {flagged[~harmful].mean():.2f} |",
            flush=True,
        )


async def review(reviewer: Reviewer, requests: list[str], answer: str) -> list[Feedback]:
    return [
        await reviewer.review(
            Prompt(id="0", messages=(Message(role="user", content=request),)), Reply(text=answer)
        )
        for request in requests
    ]


def render_auroc(harmful: np.ndarray, risks: np.ndarray) -> str:
    """Return the AUROC with its 95 % interval, by draws of rows."""
    draw = np.random.default_rng(0)
    areas = []
    while len(areas) < DRAWS:
        rows = draw.integers(0, len(harmful), len(harmful))
        if 0 < harmful[rows].sum() < len(rows):
            areas.append(roc_auc_score(harmful[rows], risks[rows]))
    low, high = np.quantile(areas, [0.025, 0.975])
    return f"{roc_auc_score(harmful, risks):.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
