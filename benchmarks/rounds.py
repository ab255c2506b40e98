"""What more rounds bring the pair of `make demo`, and a pair that was trained with more.

    python benchmarks/rounds.py [runs/demo/seed-0] [--train 3] [--out runs/rounds]

`collaborate` is the loop of training, `guarded` the gateway's. Drafts are greedy, so the rows of a
pair have the same drafts, and changes are paired by prompt. With `--train`, the demo's pair is
trained once more, with so many rounds at most. The demo's judge knows the world. The same command
resumes.
"""

import argparse
import asyncio
from dataclasses import replace
from functools import partial
from pathlib import Path

from waltzrl.agents.exports import CONVERSATION, FEEDBACK
from waltzrl.evaluation import EvaluationRow, measure, read_rows
from waltzrl.evaluation.comparison import compare
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl_demo.arms import MAX_NEW_TOKENS, WALTZ
from waltzrl_demo.jobs import EvaluationJob
from waltzrl_demo.paper import MEASURED, PaperDemo
from waltzrl_demo.world import world_judge

SEED = 0
PATTERNS = ("collaborate", "guarded")
ROUNDS = (0, 1, 2, 3)
COLUMNS = ("ASR", "ORR", "F1", "capability", "F1 by the last round", "tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("demo", nargs="?", type=Path, default=Path("runs/demo/seed-0"))
    parser.add_argument("--train", type=int, default=None)
    parser.add_argument("--out", type=Path, default=Path("runs/rounds"))
    options = parser.parse_args()
    pairs = {1: options.demo / WALTZ / "agents"}
    if options.train is not None:
        pairs[options.train] = train(options.demo, options.train, options.out / "pair")
    print(f"| trained with, pattern, rounds | {' | '.join(COLUMNS)} |")
    print(f"| --- |{' ---: |' * len(COLUMNS)}")
    for trained, agents in pairs.items():
        folder = options.out / f"trained-with-{trained}"
        for rounds in ROUNDS:
            job = evaluation(options.demo, agents, folder / str(rounds), rounds)
            asyncio.run(job.run(lambda _done, _total: None))
        for pattern in PATTERNS:
            before: list[EvaluationRow] = []
            for rounds in ROUNDS:
                rows = [r for r in read_rows(folder / str(rounds)) if r.pattern == pattern]
                print(table_line(f"{trained}, {pattern}, {rounds}", rows, before), flush=True)
                before = rows


def train(demo: Path, rounds: int, out: Path) -> Path:
    """Train the demo's pair with at most so many rounds, and return the folder of its agents."""
    job = PaperDemo(demo, SEED).training(WALTZ)
    agents = replace(job.recipe.agents, max_rounds=rounds)
    job = replace(job, recipe=replace(job.recipe, agents=agents), folder=out)
    asyncio.run(job.run(lambda _done, _total: None))
    return job.agents


def evaluation(demo: Path, agents: Path, folder: Path, rounds: int) -> EvaluationJob:
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
    judge = partial(world_judge, SEED)
    return EvaluationJob(name=str(rounds), contest=config, sets=sets, folder=folder, judge=judge)


def table_line(name: str, rows: list[EvaluationRow], before: list[EvaluationRow]) -> str:
    """Return a row: the rates of an evaluation, and what F1 gained since the one before."""
    [metrics] = measure(rows)
    gain = "-"
    if before:
        f1 = next(each for each in compare(before, rows) if each.metric == "f1")
        gain = percent(f1.change, sign="+")
    shares = [percent(each) for each in (metrics.asr, metrics.orr, metrics.f1, metrics.capability)]
    tokens = metrics.tokens_mean
    spread = f"{tokens.value:.0f} ({tokens.low:.0f} to {tokens.high:.0f})"
    return f"| {name} | {' | '.join([*shares, gain, spread])} |"


def percent(estimate: Estimate, sign: str = "") -> str:
    value, low, high = (
        f"{100 * each:{sign}.1f}" for each in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} ({low} to {high})"


if __name__ == "__main__":
    main()
