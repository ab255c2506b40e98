"""What more rounds bring the pair of `make demo`, and a pair that was trained with more.

    python benchmarks/rounds.py [runs/demo/seed-N] [--train 3] [--out runs/rounds]

`collaborate` is the loop of training, `guarded` the gateway's. Drafts are greedy, so the rows of a
pair have the same drafts, and changes are paired by prompt. With `--train`, the demo's pair is
trained once more, with so many rounds at most, and compared with the demo's own: each with as many
rounds as it was trained with, prompt by prompt, and the tokens that the trainings sampled. The
demo's judge knows the world. The same command resumes; another seed needs another `--out`.
"""

import argparse
import asyncio
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from waltzrl.agents.exports import CONVERSATION, FEEDBACK
from waltzrl.evaluation import EvaluationRow, measure, read_rows
from waltzrl.evaluation.comparison import compare
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl.evaluation.study_tables import render_cell, render_points
from waltzrl.training.targets import read_metrics
from waltzrl_demo.arms import MAX_NEW_TOKENS, WALTZ
from waltzrl_demo.jobs import EvaluationJob
from waltzrl_demo.paper import MEASURED, PaperDemo
from waltzrl_demo.world import world_judge

PATTERNS = ("collaborate", "guarded")
ROUNDS = (0, 1, 2, 3)
COLUMNS = ("ASR", "ORR", "F1", "capability", "F1 by the last round", "tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", nargs="?", type=Path, default=Path("runs/demo/seed-0"))
    parser.add_argument("--train", type=int, choices=ROUNDS[2:], default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/rounds"))
    options = parser.parse_args()
    seed = read_seed(options.demo)
    trainings = {1: options.demo / WALTZ}
    if options.train is not None:
        trainings[options.train] = options.out / "pair"
        train(options.demo, seed, options.train, trainings[options.train])
    print(f"| trained with, pattern, rounds | {' | '.join(COLUMNS)} |")
    print(f"| --- |{' ---: |' * len(COLUMNS)}")
    for trained, training in trainings.items():
        folder = options.out / f"trained-with-{trained}"
        for rounds in ROUNDS:
            job = evaluation(options.demo, seed, training / "agents", folder / str(rounds), rounds)
            asyncio.run(job.run(lambda _done, _total: None))
        for pattern in PATTERNS:
            before: list[EvaluationRow] = []
            for rounds in ROUNDS:
                rows = rows_of(folder / str(rounds), pattern)
                print(table_line(f"{trained}, {pattern}, {rounds}", rows, before), flush=True)
                before = rows
    if options.train is not None:
        print(f"\n{options.train} rounds in training and use, instead of 1:\n")
        for line in compare_trainings(options.out, trainings, options.train):
            print(f"- {line}")


def read_seed(demo: Path) -> int:
    """Return the seed of a demo, which its folder is named after."""
    name = re.fullmatch(r"seed-(\d+)", demo.resolve().name)
    if name is None:
        raise SystemExit(f"{demo} is no folder of a demo: its name must be seed-N")
    return int(name[1])


def train(demo: Path, seed: int, rounds: int, out: Path) -> None:
    """Train the demo's pair with at most so many rounds."""
    job = PaperDemo(demo, seed).training(WALTZ)
    agents = replace(job.recipe.agents, max_rounds=rounds)
    job = replace(job, recipe=replace(job.recipe, agents=agents), folder=out)
    asyncio.run(job.run(lambda _done, _total: None))


def compare_trainings(out: Path, trainings: Mapping[int, Path], rounds: int) -> Iterator[str]:
    """Say what F1 gains by so many rounds in training and use, and what the training costs."""
    for pattern in PATTERNS:
        before, after = (rows_of(out / f"trained-with-{n}" / str(n), pattern) for n in (1, rounds))
        yield f"F1, {pattern}: {render_cell(f1_change(before, after), render_points)}"
    steps = {n: read_metrics(folder) for n, folder in trainings.items()}
    first, second = (sum(step["tokens/sampled"] for step in steps[n]) for n in (1, rounds))
    yield f"tokens sampled in training: {second:,.0f}, {second / first:.1f} times {first:,.0f}"


def rows_of(folder: Path, pattern: str) -> list[EvaluationRow]:
    return [row for row in read_rows(folder) if row.pattern == pattern]


def f1_change(before: list[EvaluationRow], after: list[EvaluationRow]) -> Estimate:
    return next(each.change for each in compare(before, after) if each.metric == "f1")


def evaluation(demo: Path, seed: int, agents: Path, folder: Path, rounds: int) -> EvaluationJob:
    """Return the evaluation of a pair with at most so many rounds."""
    config = EvaluationConfig(
        patterns=PATTERNS,
        conversation=str(agents / CONVERSATION),
        feedback=str(agents / FEEDBACK),
        wording="tiny",
        max_new_tokens=MAX_NEW_TOKENS,
        max_rounds=rounds,
        concurrency=128,
    )
    sets = tuple(demo / "data" / f"{name}.jsonl" for name in MEASURED)
    judge = partial(world_judge, seed)
    return EvaluationJob(name=str(rounds), contest=config, sets=sets, folder=folder, judge=judge)


def table_line(name: str, rows: list[EvaluationRow], before: list[EvaluationRow]) -> str:
    """Return a row: the rates of an evaluation, and what F1 gained since the one before."""
    [metrics] = measure(rows)
    gain = render_cell(f1_change(before, rows), render_points) if before else "-"
    shares = map(render_cell, (metrics.asr, metrics.orr, metrics.f1, metrics.capability))
    tokens = metrics.tokens_mean
    spread = f"{tokens.value:.0f} ({tokens.low:.0f} to {tokens.high:.0f})"
    return f"| {name} | {' | '.join([*shares, gain, spread])} |"


if __name__ == "__main__":
    main()
