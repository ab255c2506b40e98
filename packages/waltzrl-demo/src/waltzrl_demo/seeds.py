"""What demos that compare arms over seeds have in common.

Each seed has a world, an initial model and trainings in a folder of its own, and its results in one
small file. Arms start from the same initial model; two of them are compared seed by seed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from waltzrl.agents.exports import CONVERSATION
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.paired import SeedDifference, compare_seeds, mean_over_seeds
from waltzrl.evaluation.rows import EvaluationRow, read_rows
from waltzrl.evaluation.study import (
    SeedPrompts,
    SeedResults,
    StudyIdentity,
    open_study,
    read_seed,
    seed_file,
    write_seed,
)
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.foundation.workers import Job, Workers
from waltzrl.records import Prompt
from waltzrl.training.recipe import Recipe
from waltzrl_demo.jobs import EvaluationJob, TrainingJob, configure_contest
from waltzrl_demo.paper import DemoSize, PaperDemo
from waltzrl_demo.study import digest_lines, read_training_cost, sample_world
from waltzrl_demo.world import LEVELS, TRAINING_NOISE, world_judge

GENERAL = "general"
METRICS = ("asr", "orr", "f1")


class SeedDemo(ABC):
    """The work of one seed in one folder; every part resumes where it was interrupted."""

    def __init__(self, folder: Path, seed: int, world: DemoSize) -> None:
        """Use a folder; everything has one thread, so that no result depends on their number."""
        self.folder, self.seed = folder, seed
        self.paper = PaperDemo(folder, seed, threads=1, size=world)

    @abstractmethod
    def write_data(self) -> None:
        """Write prompts and demonstrations, unless they are there.

        Raises:
            InputError: a training prompt is too similar to a test prompt.
        """

    @property
    @abstractmethod
    def rounds(self) -> list[list[Job]]:
        """All work in rounds: the jobs of one need those of the rounds before it."""

    @abstractmethod
    def results(self) -> SeedResults:
        """Return what was measured, a row for each arm."""

    @property
    def base(self) -> TrainingJob:
        """Train the initial model, from which all others start."""
        return name_with_seed(self.paper.base, self.seed)

    @property
    def test(self) -> Path:
        """The file of the test prompts."""
        return self.paper.file("test")

    def train_pair(self, name: str, changes: Sequence[str], prompts: str = "train") -> TrainingJob:
        """Train a pair from the initial model, as pair.toml says with some changes."""
        start = f"models.base={self.base.agents / CONVERSATION}"
        return self.train(name, self.paper.train_recipe("pair.toml", [start, *changes], prompts))

    def train(self, name: str, recipe: Recipe) -> TrainingJob:
        """Train as a recipe says, with the world's judge where agents are rewarded."""
        job = TrainingJob(name=name, recipe=recipe, folder=self.folder / name.replace(" ", "-"))
        if recipe.reinforcements:
            job = replace(job, judge=partial(world_judge, self.seed, TRAINING_NOISE))
        return name_with_seed(job, self.seed)

    def evaluate(
        self, name: str, pair: TrainingJob, sets: Sequence[Path], max_rounds: int = 1
    ) -> EvaluationJob:
        """Measure a pair on sets, and on general questions."""
        contest = configure_contest(pair.agents, pair.agents, ("collaborate",))
        return EvaluationJob(
            name=f"seed {self.seed}: measuring {name}",
            contest=replace(contest, max_rounds=max_rounds),
            sets=(*sets, self.paper.file("general-test")),
            folder=pair.folder / "evaluation",
            judge=partial(world_judge, self.seed),
        )


def name_with_seed(job: TrainingJob, seed: int) -> TrainingJob:
    """Return a job whose name has its seed, which jobs of several seeds show."""
    return replace(job, name=f"seed {seed}: {job.name}")


def collect_results(
    seed: int,
    arms: Mapping[str, tuple[EvaluationJob, Sequence[TrainingJob]]],
    find_set: Callable[[Prompt], str],
) -> SeedResults:
    """Return the results of a seed whose jobs are done.

    Args:
        seed: of the world.
        arms: what measured each, and what trained it beside the initial model.
        find_set: returns the name, in the table, of the set that a prompt is of.
    """
    rows = {
        name: [row for row in read_rows(evaluation.folder) if row.judged is not None]
        for name, (evaluation, _) in arms.items()
    }
    # Those of any arm, because all are measured on the same prompts.
    prompts = {row.prompt_id: _prompt_of(row) for row in next(iter(rows.values()))}
    results = SeedResults(
        SeedPrompts(
            seed=seed,
            ids=list(prompts),
            categories=[find_set(prompt) for prompt in prompts.values()],
            clusters=[prompt.cluster or find_set(prompt) for prompt in prompts.values()],
        )
    )
    for name, (_, trainings) in arms.items():
        trained = {
            # Without the seed, which `name_with_seed` has put before it.
            job.name.partition(": ")[2]: read_training_cost(job.folder)
            for job in trainings
        }
        results.add(name, rows[name], trained)
    return results


def _prompt_of(row: EvaluationRow) -> Prompt:
    assert row.judged is not None
    return row.judged.collaboration.prompt


def identify_demo(
    title: str,
    arms: Sequence[str],
    recipes: Sequence[str],
    settings: object,
    levels: tuple[str, ...] = LEVELS,
) -> StudyIdentity:
    """Return what a folder of results is of.

    Args:
        title: of the table.
        arms: that are compared.
        recipes: files in this package that are trained by.
        settings: all else that the results depend on.
        levels: of the world.
    """
    told = [(files(__package__) / name).read_bytes() for name in recipes]
    return StudyIdentity(
        world=digest_lines(sample_world(levels)),
        recipes=digest_lines(iter((*told, repr(settings).encode()))),
        tables={title: tuple(arms)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmRow:
    """One number of two arms, over seeds."""

    prompts: str
    """The set that it is of."""
    metric: str
    arms: Mapping[str, Estimate]
    change: SeedDifference | None
    """The second arm minus the first; None of one seed."""


def tabulate(
    folder: Path, seeds: Sequence[int], arms: Sequence[str], sets: Sequence[str]
) -> list[ArmRow]:
    """Return the table of two arms on some sets and on general questions, over finished seeds."""
    results = [each for seed in seeds if (each := read_seed(folder, seed)) is not None]
    wanted = [(name, metric) for name in sets for metric in METRICS] + [(GENERAL, "capability")]
    rows = []
    for name, metric in wanted:
        values = {arm: [each.values(arm, name)[metric] for each in results] for arm in arms}
        rows.append(
            ArmRow(
                prompts=name,
                metric=metric,
                arms={arm: mean_over_seeds(own) for arm, own in values.items()},
                change=compare_seeds(*values.values()) if len(results) > 1 else None,
            )
        )
    return rows


def list_tokens(folder: Path, seeds: Sequence[int]) -> dict[str, float]:
    """Return the tokens that each training sampled, the mean over seeds."""
    results = [each for seed in seeds if (each := read_seed(folder, seed)) is not None]
    totals: dict[str, list[int]] = {}
    for each in results:
        for row in each.rows.values():
            for name, cost in row.trained.items():
                totals.setdefault(name, []).append(cost.tokens)
    return {name: sum(own) / len(own) for name, own in totals.items()}


def finish_seeds(
    folder: Path,
    seeds: int,
    identity: StudyIdentity,
    open_demo: Callable[[Path, int], SeedDemo],
    workers: Workers,
) -> None:
    """Train and measure, round by round, the seeds from 0 that have no results yet.

    Args:
        folder: of the results, and of the work of each seed.
        seeds: how many.
        identity: what the folder is of.
        open_demo: opens the work of a seed in a folder.
        workers: run the jobs.
    """
    with RunDirectory(folder):
        open_study(folder, identity)
        left = [seed for seed in range(seeds) if not seed_file(folder, seed).exists()]
        demos = [open_demo(folder / "work" / f"seed-{seed}", seed) for seed in left]
        for demo in demos:
            demo.write_data()
        for jobs in zip(*(demo.rounds for demo in demos), strict=True):
            workers.run([job for own in jobs for job in own])
        for demo in demos:
            write_seed(folder, demo.results())
