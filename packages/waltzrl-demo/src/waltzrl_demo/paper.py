"""The demo of the paper: a world, an initial model, its trainings, and the paper's table.

Everything is chosen on the validation split; the test split is only reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch

from waltzrl import __version__
from waltzrl.agents.exports import CONVERSATION, FEEDBACK
from waltzrl.agents.settings import FeedbackConfig
from waltzrl.evaluation import EvaluationRow, measure, read_rows, table_row
from waltzrl.evaluation.data.duplicates import require_disjoint, text_of
from waltzrl.evaluation.judges.guard import LinearGuard
from waltzrl.evaluation.patterns import GUARDED_LABELS
from waltzrl.evaluation.report import EvaluationReport, read_curve, write_report
from waltzrl.foundation.files import Json, write_json
from waltzrl.foundation.jsonl import write_lines
from waltzrl.records import Prompt
from waltzrl.training.recipe import Recipe
from waltzrl_demo.arms import (
    BASE,
    MAIN,
    MAIN_ROWS,
    MAX_NEW_TOKENS,
    SERVED,
    ComparedRow,
    changes_of,
)
from waltzrl_demo.jobs import (
    CalibrationJob,
    EvaluationJob,
    TrainingJob,
    configure_contest,
    load_demo_recipe,
)
from waltzrl_demo.world import (
    LEVELS,
    TRAINING_NOISE,
    Split,
    World,
    demonstrations,
    general_prompts,
    sensitive_prompts,
    world_judge,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSize:
    """How much the demo generates and trains."""

    demonstrations: int = 50_000
    prompts: Mapping[Split, int] = field(
        default_factory=lambda: {"train": 3000, "validation": 360, "test": 960}
    )
    general: int = 250
    """The number of general questions to train on; as many are measured on."""
    levels: tuple[str, ...] = LEVELS
    """The levels of the world."""
    base_changes: tuple[str, ...] = ()
    """Changes of base.toml, such as a smaller number of steps."""
    pair_changes: tuple[str, ...] = ()
    """Changes of every training after the base."""


FULL = DemoSize()
GENERAL_REPEATS = 4
"""General questions are a quarter of the training prompts: plain requests that need no feedback.

The paper trains on no such prompts; our small feedback agent would not unlearn its false alarms
on them otherwise. Every row of the table that learns meets the same prompts.
"""

READ_FIRST = (
    "Read the row WaltzRL against base and single-model RL first: the trained pair, the model that "
    "both of its agents started from, and one agent trained with as many sampled tokens; the other "
    "rows take the pair apart or stand for simpler ways."
)
MEASURED = ("test", "general-test")
"""The sets that every row is measured on."""


class PaperDemo:
    """The demo of one seed in one folder; every part resumes where it was interrupted."""

    def __init__(self, folder: Path, seed: int, *, threads: int = 2, size: DemoSize = FULL) -> None:
        """Use a folder.

        Args:
            folder: is created.
            seed: of the data, models and trainings.
            threads: of the training of the initial model, which runs alone; others have one each.
            size: of everything.
        """
        self.folder = folder
        self.seed = seed
        self.data = folder / "data"
        self._threads, self._size = threads, size

    def write_data(self) -> None:
        """Write prompts and demonstrations, after checking that training does not touch the test.

        Raises:
            InputError: a training prompt is too similar to a test or validation prompt.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        size = self._size
        world = World.create(self.seed, size.levels)
        sets: dict[str, list[Prompt]] = {
            split: sensitive_prompts(world, split, count, self.seed)
            for split, count in size.prompts.items()
        }
        for split in ("validation", "test"):
            require_disjoint(sets["train"], sets[split])
        sets["guard"] = sets["train"][:1000]
        sets["general-train"] = general_prompts("train", size.general, self.seed)
        sets["general-test"] = general_prompts("test", size.general, self.seed)
        for name, prompts in sets.items():
            write_lines(self.file(name), prompts)
        unseen = {text_of(prompt) for prompt in (*sets["validation"], *sets["test"])}
        # Written last: whoever finds this file skips the writing of all.
        taught = demonstrations(world, size.demonstrations, self.seed, unseen)
        write_lines(self.file("demonstrations"), list(taught))

    @property
    def base(self) -> TrainingJob:
        """The initial model, from which both agents of every other training start."""
        changes = [
            f"data.demonstrations={[str(self.file('demonstrations'))]}",
            f"compute.threads={self._threads}",
            *self._size.base_changes,
        ]
        recipe = self.recipe("base.toml", ["train"], changes)
        return TrainingJob(name=BASE, recipe=recipe, folder=self.folder / BASE)

    def training(self, name: str) -> TrainingJob:
        """Return a training by its name: the base, or one that `changes_of` knows."""
        if name == BASE:
            return self.base
        start = f"models.base={self.base.agents / CONVERSATION}"
        changes = [start, *changes_of(name), *self._size.pair_changes]
        recipe = self.train_recipe("pair.toml", changes)
        # Not the judge itself: it is made in the process of the job.
        judge = partial(world_judge, self.seed, TRAINING_NOISE)
        return TrainingJob(name=name, recipe=recipe, folder=self.folder / name, judge=judge)

    @property
    def guard_drafts(self) -> EvaluationJob:
        """Drafts of the initial model on training prompts, to fit the word guards on."""
        return self._make_evaluation((BASE, BASE), ("base",), ("guard",), self.folder / "guard")

    def fit_guard(self) -> None:
        """Fit a word guard for each label on the judged drafts."""
        judged = [row.judged for row in read_rows(self.guard_drafts.folder) if row.judged]
        texts = [(j.collaboration.prompt.request, j.collaboration.draft.text) for j in judged]
        verdicts = [j.verdicts[0] for j in judged]
        labels = ([v.unsafe is True for v in verdicts], [v.overrefuses is True for v in verdicts])
        self._guard_folder.mkdir(exist_ok=True)
        for name, flags in zip(GUARDED_LABELS, labels, strict=True):
            LinearGuard.fit(texts, flags, seed=self.seed).save(self._guard_folder / f"{name}.json")

    def evaluations(
        self, rows: Sequence[ComparedRow], sets: Sequence[str] = MEASURED
    ) -> list[EvaluationJob]:
        """Return what measures the rows on some sets, one job for each pair of agents."""
        # Rows of the same agents are one job, which loads them once.
        patterns: dict[tuple[str, str], list[str]] = {}
        for row in rows:
            patterns.setdefault((row.conversation, row.feedback), []).append(row.pattern)
        return [
            self._make_evaluation(pair, tuple(played), sets, self._rows_folder(*pair))
            for pair, played in patterns.items()
        ]

    def measured(self, row: ComparedRow) -> list[EvaluationRow]:
        """Read what was measured of a row, under its name."""
        measured = read_rows(self._rows_folder(row.conversation, row.feedback))
        return [replace(each, pattern=row.name) for each in measured if each.pattern == row.pattern]

    @property
    def calibration(self) -> CalibrationJob:
        """Measure the feedback agent that `waltzrl serve --demo` serves.

        On drafts of the initial model, which refuses more often than the trained one.
        """
        served = self.training(SERVED)
        feedback = FeedbackConfig(
            model=str(served.agents / FEEDBACK), wording="tiny", max_new_tokens=MAX_NEW_TOKENS
        )
        rows = (self.guard_drafts.folder, self._rows_folder(BASE, BASE))
        return CalibrationJob(name="calibration", feedback=feedback, rows=rows, pattern="base")

    def table(self) -> list[EvaluationRow]:
        """Return the rows of the main table."""
        return [each for row in MAIN_ROWS for each in self.measured(row)]

    def write_report(self, folder: Path) -> Path:
        """Write table.json and report.html with its pictures; return the page."""
        rows = self.table()
        lines: Json = [table_row(line.pattern, line) for line in measure(rows)]
        write_json(folder / "table.json", lines)
        curves = {name: read_curve(self.training(name).folder) for name in MAIN}
        settings = {
            "seed": str(self.seed),
            "versions": f"waltzrl {__version__}, torch {torch.__version__}",
        }
        title = f"WaltzRL demo, seed {self.seed}"
        report = EvaluationReport(
            title=title, rows=rows, curves=curves, settings=settings, read_first=READ_FIRST
        )
        return write_report(folder, report)

    def _rows_folder(self, conversation: str, feedback: str) -> Path:
        name = "evaluation" if feedback == conversation else f"evaluation-with-{feedback}"
        return self.folder / conversation / name

    def _make_evaluation(
        self, pair: tuple[str, str], patterns: tuple[str, ...], sets: Sequence[str], folder: Path
    ) -> EvaluationJob:
        conversation, feedback = map(self.training, pair)
        contest = configure_contest(conversation.agents, feedback.agents, patterns)
        if "guard-loop" in patterns:
            contest = replace(contest, guard=str(self._guard_folder))
        files = tuple(self.file(name) for name in sets)
        name = " + ".join(dict.fromkeys(pair))
        judge = partial(world_judge, self.seed)
        return EvaluationJob(name=name, contest=contest, sets=files, folder=folder, judge=judge)

    def recipe(self, file: str, prompts: Sequence[str], changes: Sequence[str]) -> Recipe:
        """Read one of the demo's recipes, to train on some of its sets with some changes."""
        paths = [str(self.file(name)) for name in prompts]
        return load_demo_recipe(file, [f"seed={self.seed}", f"data.prompts={paths}", *changes])

    def train_recipe(self, file: str, changes: Sequence[str], prompts: str = "train") -> Recipe:
        """Read a recipe, to train on a set and on general questions; see `recipe`."""
        return self.recipe(file, [prompts, *["general-train"] * GENERAL_REPEATS], changes)

    def file(self, name: str) -> Path:
        """Return the path of the set `name`."""
        return self.data / f"{name}.jsonl"

    @property
    def _guard_folder(self) -> Path:
        return self.folder / "guard" / "weights"
