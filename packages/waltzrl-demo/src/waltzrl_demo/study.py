"""The study: the demo's comparisons with many seeds, one process for each, over hours.

A seed's work is one job that trains, measures and deletes what is no longer needed, and keeps the
finished rows. Killed at any time, it goes on where it was.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import islice
from pathlib import Path

import msgspec

from waltzrl.evaluation.data.opening import read_sets
from waltzrl.evaluation.study import (
    SeedPrompts,
    SeedResults,
    StudyIdentity,
    TrainingCost,
    read_seed,
    write_seed,
)
from waltzrl.foundation.journal import read_metrics
from waltzrl.training.settings import ImitationStage
from waltzrl_demo.arms import (
    BASE,
    CELL_ROWS,
    FACTORS,
    MAX_NEW_TOKENS,
    PAPER_CLAIMS,
    STUDY_TABLES,
    TUNING_TABLES,
    WALTZRL,
    ComparedRow,
    changes_of,
)
from waltzrl_demo.jobs import EvaluationJob, TrainingJob
from waltzrl_demo.paper import FULL, GENERAL_REPEATS, MEASURED, DemoSize, PaperDemo
from waltzrl_demo.world import (
    LEVELS,
    TRAINING_NOISE,
    World,
    demonstrations,
    general_prompts,
    sensitive_prompts,
    world_judge,
)
from waltzrl_demo.world.lexicon import SPLITS

TUNING_SEED = 1000
"""The first of the seeds that settings are chosen on; the study's own begin at 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """What is measured with every seed."""

    tables: Mapping[str, Sequence[ComparedRow]]
    sets: tuple[str, ...]
    factorial: bool
    """Whether one table is the 2x2x2, and the main rows are tested against WaltzRL."""
    size: DemoSize = FULL

    @property
    def rows(self) -> list[ComparedRow]:
        """Every row once."""
        rows = {row.name: row for rows in self.tables.values() for row in rows}
        return [*rows.values()]

    @property
    def identity(self) -> StudyIdentity:
        tables = {title: tuple(row.name for row in rows) for title, rows in self.tables.items()}
        identity = StudyIdentity(
            world=digest_lines(sample_world()),
            recipes=digest_lines(self._yield_recipe_lines()),
            tables=tables,
        )
        if not self.factorial:
            return identity
        return msgspec.structs.replace(
            identity,
            reference=WALTZRL,
            factors={name: (low, high) for name, (low, high) in FACTORS.items()},
            cells={row: cell for cell, row in CELL_ROWS.items()},
            claims=tuple(PAPER_CLAIMS),
        )

    def _yield_recipe_lines(self) -> Iterator[bytes]:
        for file in ("base.toml", "pair.toml"):
            yield (files(__package__) / file).read_bytes()
        for row in self.rows:
            trainings = {row.conversation, row.feedback} - {BASE}
            yield repr((row, sorted(map(changes_of, trainings)))).encode()
        yield repr((self.size, self.sets, GENERAL_REPEATS, MAX_NEW_TOKENS)).encode()


MAIN_STUDY = StudyPlan(tables=STUDY_TABLES, sets=MEASURED, factorial=True)
TUNING_STUDY = StudyPlan(tables=TUNING_TABLES, sets=("validation",), factorial=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedJob:
    """One table of a study with one seed, in one process with one thread."""

    seed: int
    plan: StudyPlan
    table: str
    """The title of one of the plan's tables; what an earlier table measured is not measured
    again."""
    folder: Path
    """The folder of the study."""
    keep: bool = False
    """Whether data and weights are left in `work`."""

    @property
    def name(self) -> str:
        return f"seed {self.seed}: {self.table}"

    async def run(self, report: Callable[[int, int], None]) -> None:
        """Train and measure what is missing; progress is counted in thousands of prompts."""
        demo = PaperDemo(self._work, self.seed, threads=1, size=self.plan.size)
        parts = self._parts(demo)
        progress = _Progress(report, sum(part.size for part in parts))
        for place, part in enumerate(parts):
            results = read_seed(self.folder, self.seed)
            if results is None or not {row.name for row in part.rows} <= results.rows.keys():
                await self._finish(part, demo, results, progress)
            else:
                progress.skip(part.size)
            if not self.keep:
                # Every other training starts from the base, those of later tables too.
                needed = {BASE}.union(*(later.trainings for later in parts[place + 1 :]))
                for name in part.trainings.keys() - needed:
                    shutil.rmtree(self._work / name, ignore_errors=True)
        results = read_seed(self.folder, self.seed)
        done = results is not None and {row.name for row in self.plan.rows} <= results.rows.keys()
        if done and not self.keep:
            shutil.rmtree(self._work, ignore_errors=True)

    @property
    def _work(self) -> Path:
        return self.folder / "work" / f"seed-{self.seed}"

    def _parts(self, demo: PaperDemo) -> list["_Part"]:
        """Return the rows of each pair of agents, with the trainings that they need."""
        pairs: dict[tuple[str, str], list[ComparedRow]] = {}
        for row in self.plan.tables[self.table]:
            pairs.setdefault((row.conversation, row.feedback), []).append(row)
        sizes: dict[str, int] = {"general-test": self.plan.size.general}
        sizes |= {str(split): count for split, count in self.plan.size.prompts.items()}
        prompts = sum(sizes[name] for name in self.plan.sets) / 1000
        parts: list[_Part] = []
        for pair, rows in pairs.items():
            earlier = {name for part in parts for name in part.trainings}
            trainings = {
                name: 0.0 if name in earlier else _estimate_size(demo.training(name))
                for name in dict.fromkeys((BASE, *pair))
            }
            parts.append(_Part(rows=rows, trainings=trainings, measuring=prompts * len(rows)))
        return parts

    async def _finish(
        self, part: "_Part", demo: PaperDemo, results: SeedResults | None, progress: "_Progress"
    ) -> None:
        """Train and measure a part, and add its rows to the results of the seed."""
        if not demo.file("demonstrations").exists():
            demo.write_data()
        for name, size in part.trainings.items():
            await progress.run(demo.training(name), size)
        if any(row.pattern == "guard-loop" for row in part.rows):
            await progress.run(demo.guard_drafts, 0.0)
            demo.fit_guard()
        (evaluation,) = demo.evaluations(part.rows, self.plan.sets)
        await progress.run(evaluation, part.measuring)
        results = results or SeedResults(read_seed_prompts(demo, self.plan.sets))
        trained = {
            name: read_training_cost(demo.training(name).folder)
            for name in part.trainings
            if name != BASE
        }
        for row in part.rows:
            results.add(row.name, demo.measured(row), trained)
        write_seed(self.folder, results)


def study_rounds(
    plan: StudyPlan, seeds: Sequence[int], folder: Path, *, keep: bool
) -> list[list[SeedJob]]:
    """Return the jobs of a study in rounds, one for each table.

    Jobs of one round are of one size and of different seeds, so they can run at the same time. Jobs
    of different rounds cannot: they share the weights and the results of a seed.
    """
    return [
        [SeedJob(seed=seed, plan=plan, table=table, folder=folder, keep=keep) for seed in seeds]
        for table in plan.tables
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """The rows of one pair of agents."""

    rows: Sequence[ComparedRow]
    trainings: Mapping[str, float]
    """The trainings that the rows need, with their sizes; 0 where an earlier part has the same
    training."""
    measuring: float

    @property
    def size(self) -> float:
        """Thousands of prompts."""
        return sum(self.trainings.values()) + self.measuring


class _Progress:
    """Counts thousands of prompts over jobs of different sizes."""

    def __init__(self, report: Callable[[int, int], None], total: float) -> None:
        self._report, self._total, self._done = report, total, 0.0

    async def run(self, job: TrainingJob | EvaluationJob, size: float) -> None:
        await job.run(lambda done, steps: self._tell(size * done / steps))
        self.skip(size)

    def skip(self, size: float) -> None:
        self._done += size
        self._tell(0.0)

    def _tell(self, within: float) -> None:
        self._report(round(self._done + within), round(self._total))


def _estimate_size(training: TrainingJob) -> float:
    """Return thousands of prompts; imitating a demonstration takes about a fifth of a rollout."""
    return sum(
        stage.steps * stage.batch_size / 5000
        if isinstance(stage, ImitationStage)
        else stage.total_steps(0) * stage.prompts_per_step * stage.group_size / 1000
        for stage in training.recipe.stages
    )


def read_training_cost(folder: Path) -> TrainingCost:
    """Return what a training in a folder took."""
    tokens, seconds = (
        sum(step.get(name, 0.0) for step in read_metrics(folder))
        for name in ("tokens/sampled", "time/step_seconds")
    )
    return TrainingCost(tokens=round(tokens), seconds=round(seconds, 1))


def read_seed_prompts(demo: PaperDemo, sets: Sequence[str]) -> SeedPrompts:
    prompts = read_sets([str(demo.file(name)) for name in sets])
    return SeedPrompts(
        seed=demo.seed,
        ids=[prompt.id for prompt in prompts],
        categories=[prompt.category for prompt in prompts],
        clusters=[prompt.cluster or prompt.category for prompt in prompts],
    )


def sample_world(levels: tuple[str, ...] = LEVELS) -> Iterator[bytes]:
    """Yield a sample of a world with some levels: what is in it changes if the world does."""
    world = World.create(0, levels)
    yield world_judge(0, TRAINING_NOISE).name.encode()
    for split in SPLITS:
        yield msgspec.json.encode(sensitive_prompts(world, split, 60, 0))
    yield msgspec.json.encode(general_prompts("test", 20, 0))
    shown = msgspec.json.encode(list(islice(demonstrations(world, 300, 0, set()), 300)))
    # The committed studies are older than these fields, which nobody sets in this world.
    yield shown.replace(b',"doubtful":false', b"").replace(b',"action":"revise"', b"")


def digest_lines(lines: Iterator[bytes]) -> str:
    """Return what tells these lines from others."""
    digest = hashlib.sha256()
    for line in lines:
        # With its length before it, a line cannot be confused with two shorter ones.
        digest.update(len(line).to_bytes(8, "big") + line)
    return digest.hexdigest()[:12]
