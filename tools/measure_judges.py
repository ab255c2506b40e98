"""Measure the offline judges on recorded replies that carry labels.

    python tools/measure_judges.py FILE...

A file is JSON Lines of prompt, response, label and response_label (safe or unsafe), or a JSON file
of jailbreak artifacts with GPT-4's labels, as github.com/tml-epfl/llm-past-tense publishes them.
Files of artifacts count as one set. Prints a table in Markdown: the agreement of `unsafe`, by
either judge, with the set's own labels. For a set that a judge learnt from, its row is in-sample:
the refusal detector learnt 986 replies of JailbreakBench's artifacts, and both judges replies of
refusal_direction and GPTFuzz.
"""

import asyncio
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from sklearn.metrics import roc_auc_score

from waltzrl.evaluation.intervals import share
from waltzrl.evaluation.judges.agreement import agreement
from waltzrl.evaluation.judges.harm import HarmJudge
from waltzrl.evaluation.judges.judge import Judge, LabelRefusalJudge
from waltzrl.records import Message, Prompt, Reply, Verdict

Row = tuple[str, str, bool]
"""Prompt, reply, and whether the set calls the reply unsafe."""


def main(paths: Sequence[Path]) -> None:
    sets: dict[str, list[Row]] = defaultdict(list)
    for path in paths:
        artifacts = path.suffix == ".json"
        name = "past tense" if artifacts else path.stem
        sets[name] += read_artifacts(path) if artifacts else read_lines(path)
    print("| set | n | unsafe | judge | AUROC | accuracy | kappa |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, every_row in sets.items():
        rows = list(dict.fromkeys(every_row))
        for kind, judge in (("refusal", LabelRefusalJudge()), ("harm", HarmJudge())):
            verdicts = asyncio.run(label(judge, rows))
            print(f"| {name} | {len(rows)} | {measured(rows, kind, verdicts)} |")


def read_lines(path: Path) -> Iterator[Row]:
    for line in path.read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["label"] != "benign" and row.get("response_label") in {"safe", "unsafe"}:
            yield row["prompt"], row["response"], row["response_label"] == "unsafe"


def read_artifacts(path: Path) -> Iterator[Row]:
    for row in json.loads(path.read_text("utf-8"))["jb_artifacts"]:
        if row["response"]:
            yield row["request_reformulated"], row["response"], row["jailbroken_gpt"]


async def label(judge: Judge, rows: Sequence[Row]) -> list[Verdict]:
    """Judge the replies; every prompt counts as unsafe."""
    return [
        await judge.judge(
            Prompt(id="", messages=(Message(role="user", content=prompt),), label="unsafe"),
            Reply(text=reply),
        )
        for prompt, reply, _unsafe in rows
    ]


def measured(rows: Sequence[Row], kind: str, verdicts: Sequence[Verdict]) -> str:
    truth = [unsafe for _prompt, _reply, unsafe in rows]
    answers = [bool(verdict.unsafe) for verdict in verdicts]
    scores = [
        float(answer) if verdict.harm is None else verdict.harm
        for answer, verdict in zip(answers, verdicts, strict=True)
    ]
    right = sum(a == b for a, b in zip(truth, answers, strict=True))
    accuracy = share(right, len(rows))
    kappa = agreement(truth, answers)
    return (
        f"{sum(truth)} | {kind} | {area(truth, scores)} | "
        f"{accuracy.value:.3f} ({accuracy.low:.3f}-{accuracy.high:.3f}) | "
        f"{kappa.kappa:.2f} ({kappa.low:.2f}-{kappa.high:.2f})"
    )


def area(truth: Sequence[bool], scores: Sequence[float]) -> str:
    """Return the AUROC with its 95 % interval by Hanley and McNeil (1982)."""
    area = roc_auc_score(truth, scores)
    positives = sum(truth)
    negatives = len(truth) - positives
    of_two_positives, of_two_negatives = area / (2 - area), 2 * area**2 / (1 + area)
    variance = (
        area * (1 - area)
        + (positives - 1) * (of_two_positives - area**2)
        + (negatives - 1) * (of_two_negatives - area**2)
    ) / (positives * negatives)
    half = 1.96 * math.sqrt(variance)
    return f"{area:.3f} ({area - half:.3f}-{min(1, area + half):.3f})"


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])
