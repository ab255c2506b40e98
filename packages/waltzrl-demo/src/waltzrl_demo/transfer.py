"""Transfer: a trained feedback agent in front of conversation agents that it never met.

Each seed has a world, and a pair that was trained in it. Its feedback agent reviews, in this world,
drafts of its own partner, of other agents of the same world, and of the next seed's pair, which
knows other code words. Each conversation agent answers alone too, so that both are compared prompt
by prompt.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from waltzrl.evaluation.comparison import Difference, compare
from waltzrl.evaluation.paired import SeedDifference, compare_seeds
from waltzrl.evaluation.rows import read_rows
from waltzrl.foundation.workers import Job
from waltzrl_demo.arms import BASE, SINGLE, WALTZ
from waltzrl_demo.attack import FULL, PAIR, WITH_ATTACKER, AttackDemo, AttackSize
from waltzrl_demo.jobs import EvaluationJob, TrainingJob, configure_contest
from waltzrl_demo.paper import PaperDemo
from waltzrl_demo.seeds import name_with_seed
from waltzrl_demo.world import world_judge

Source = Literal["demo", "attack"]
"""The demo whose agents are measured: `waltzrl demo`, or `waltzrl demo attack`, whose are small."""
PARTNER, NEXT = "its own partner", "the next seed's pair"
ALONE, REVIEWED = "base", "collaborate"
"""The patterns that are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferSeed:
    """The agents of one seed."""

    seed: int
    folder: Path
    rounds: Sequence[Sequence[Job]]
    """The trainings of the agents that are not there yet."""
    pair: TrainingJob
    others: Mapping[str, TrainingJob]
    """Trainings of other conversation agents of the same world."""
    test: Path

    @classmethod
    def of_demo(cls, folder: Path, seed: int) -> "TransferSeed":
        """Take the agents of `waltzrl demo`."""
        demo = PaperDemo(folder / f"seed-{seed}", seed, threads=1)
        if not demo.file("demonstrations").exists():
            demo.write_data()
        base, pair, single = (name_with_seed(demo.training(n), seed) for n in (BASE, WALTZ, SINGLE))
        return cls(
            seed=seed,
            folder=demo.folder,
            rounds=[[base], [pair, single]],
            pair=pair,
            others={"the initial model": base, "single-model RL": single},
            test=demo.file("test"),
        )

    @classmethod
    def of_attack(cls, folder: Path, seed: int, size: AttackSize = FULL) -> "TransferSeed":
        """Take the agents of `waltzrl demo attack`, and train a single one beside them."""
        demo = AttackDemo(folder / "work" / f"seed-{seed}", seed, size=size)
        demo.write_data()
        base, pair, attacked = demo.base, demo.training(PAIR), demo.training(WITH_ATTACKER)
        return cls(
            seed=seed,
            folder=demo.folder,
            rounds=[[base], [demo.taught, pair, demo.single], [attacked]],
            pair=pair,
            others={
                "the initial model": base,
                "single-model RL": demo.single,
                "the pair with an attacker": attacked,
            },
            test=demo.test,
        )

    def evaluations(self, following: "TransferSeed | None") -> dict[str, EvaluationJob]:
        """Return what measures each conversation agent, by its name; the next seed's too."""
        agents = {PARTNER: self.pair, **self.others}
        if following is not None:
            agents[NEXT] = following.pair
        return {name: self._evaluate(name, own.agents) for name, own in agents.items()}

    def _evaluate(self, name: str, agents: Path) -> EvaluationJob:
        contest = configure_contest(agents, self.pair.agents, (ALONE, REVIEWED))
        return EvaluationJob(
            name=f"seed {self.seed}: {name}",
            contest=contest,
            sets=(self.test,),
            folder=self.folder / "transfer" / name.replace(" ", "-").replace("'", ""),
            judge=partial(world_judge, self.seed),
        )


def open_seeds(source: Source, folder: Path, seeds: int) -> list[TransferSeed]:
    """Return the agents of as many seeds, from 0; some may have to be trained."""
    make = TransferSeed.of_demo if source == "demo" else TransferSeed.of_attack
    return [make(folder, seed) for seed in range(seeds)]


def list_evaluations(seeds: Sequence[TransferSeed]) -> list[dict[str, EvaluationJob]]:
    """Return the evaluations of each seed, by conversation agent."""
    count = len(seeds)
    return [
        own.evaluations(seeds[(place + 1) % count] if count > 1 else None)
        for place, own in enumerate(seeds)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransferRow:
    """F1 of one conversation agent alone and with the feedback agent."""

    agent: str
    seeds: Sequence[Difference]
    """The difference of each seed, paired by prompt, with an interval over clusters of prompts."""
    mean: SeedDifference | None
    """The same over seeds; None of one seed."""


def tabulate_transfer(evaluations: Sequence[Mapping[str, EvaluationJob]]) -> list[TransferRow]:
    """Return a row for each conversation agent."""
    rows = []
    for name in evaluations[0]:
        differences = [_compare_patterns(jobs[name].folder) for jobs in evaluations]
        before, after = [each.before for each in differences], [each.after for each in differences]
        mean = compare_seeds(before, after) if len(differences) > 1 else None
        rows.append(TransferRow(agent=name, seeds=differences, mean=mean))
    return rows


def _compare_patterns(folder: Path) -> Difference:
    rows = read_rows(folder)
    alone, reviewed = ([row for row in rows if row.pattern == each] for each in (ALONE, REVIEWED))
    return next(each for each in compare(alone, reviewed) if each.metric == "f1")
