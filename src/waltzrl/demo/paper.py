"""The demo of the paper: a world, an initial model, seven trainings, and the paper's table.

Everything is chosen on the validation split; the test split is only reported.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import as_file, files
from pathlib import Path

import torch

from waltzrl import __version__
from waltzrl.collaboration.patterns import GUARDED_LABELS
from waltzrl.config.evaluation import EvaluationConfig
from waltzrl.config.gateway import FeedbackConfig
from waltzrl.config.training import Recipe, load_recipe
from waltzrl.data import require_disjoint, write_lines
from waltzrl.demo.jobs import CalibrationJob, EvaluationJob, TrainingJob
from waltzrl.demo.world import Split, World, demonstrations, general_prompts, sensitive_prompts
from waltzrl.evaluation import EvaluationRow, measure, read_rows, table_row
from waltzrl.evaluation.report import EvaluationReport, read_curve, write_report
from waltzrl.judges import LinearGuard
from waltzrl.records import Prompt
from waltzrl.telemetry.files import Json, write_json
from waltzrl.training import CONVERSATION, FEEDBACK

DEMONSTRATIONS = 40_000
PROMPTS: Mapping[Split, int] = {"train": 3000, "validation": 400, "test": 1000}
GENERAL = 250
GENERAL_REPEATS = 4
"""General questions are a quarter of the training prompts: plain requests that need no feedback.

The paper trains on no such prompts; our small feedback agent would not unlearn its false alarms
on them otherwise. Every row of the table that learns meets the same prompts.
"""

CHANGES: Mapping[str, tuple[str, ...]] = {
    "signed": (),
    "paper": (
        "stages.feedback.reward=paper",
        "stages.joint.reward=paper",
        "stages.joint.coefficients.label=0.0",
        "stages.joint.replayed_share=0.0",
    ),
    "frozen": ('stages.joint.learns=["feedback"]', "stages.joint.replayed_share=0.0"),
    "single": (
        'stages.feedback.learns=["conversation"]',
        "stages.feedback.pattern=draft-only",
        "stages.feedback.algorithm.kl_weight=0.1",
        'stages.joint.learns=["conversation"]',
        "stages.joint.pattern=draft-only",
        "stages.joint.replayed_share=0.0",
        "stages.joint.algorithm.kl_weight=0.1",
        "stages.joint.optimizer.learning_rate=3e-4",
    ),
    "design-a": ("stages.feedback.reward=paper", "stages.joint.steps=0"),
    "design-b": (
        "stages.feedback.reward=paper",
        "stages.feedback.coefficients.label=0.0",
        "stages.joint.steps=0",
    ),
    "design-c": ("stages.feedback.reward=unconditioned", "stages.joint.steps=0"),
}
"""What each training changes in pair.toml.

`signed` and `paper` are WaltzRL in either mode; `single` is the conversation agent alone, tuned
as long as the pair was; the designs are the paper's ablation of the label reward, with the
conversation agent frozen.
"""


MODES = ("signed", "paper")
SERVED = "signed"
"""The pair that `waltzrl serve --demo` serves."""
MAX_NEW_TOKENS = 48
"""Longest turn of the demo's agents."""
DESIGNS = ("design-a", "design-b", "design-c")
REPORTED = ("test", "general")


class PaperDemo:
    """The demo of one seed in one folder; every part resumes where it was interrupted."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.data = folder / "data"

    def write_data(self) -> None:
        """Write prompts and demonstrations, after checking that training does not touch the test.

        Raises:
            InputError: a training prompt is too similar to a test or validation prompt.
        """
        self.data.mkdir(parents=True, exist_ok=True)
        world = World.create(self.seed)
        sets: dict[str, list[Prompt]] = {
            split: sensitive_prompts(world, split, count, self.seed)
            for split, count in PROMPTS.items()
        }
        for split in ("validation", "test"):
            require_disjoint(sets["train"], sets[split])
        sets["guard"] = sets["train"][:1000]
        sets["general-train"] = general_prompts("train", GENERAL, self.seed)
        sets["general-test"] = general_prompts("test", GENERAL, self.seed)
        for name, prompts in sets.items():
            write_lines(self.file(name), prompts)
        unseen = {p.messages[-1].content for p in (*sets["validation"], *sets["test"])}
        taught = demonstrations(world, DEMONSTRATIONS, self.seed, unseen)
        write_lines(self.file("demonstrations"), list(taught))

    @property
    def base(self) -> TrainingJob:
        """The initial model, from which both agents of every other training start."""
        taught = f"data.demonstrations={[str(self.file('demonstrations'))]}"
        recipe = self.recipe("base.toml", ["train"], [taught])
        return TrainingJob(name="base", recipe=recipe, folder=self.folder / "base")

    @property
    def trainings(self) -> dict[str, TrainingJob]:
        """Every training after the base, longest first."""
        prompts = ["train", *["general-train"] * GENERAL_REPEATS]
        start = f"models.base={self.base.agents / CONVERSATION}"
        return {
            name: TrainingJob(
                name=name,
                recipe=self.recipe("pair.toml", prompts, [start, *changes]),
                folder=self.folder / name,
            )
            for name, changes in CHANGES.items()
        }

    @property
    def guard_drafts(self) -> EvaluationJob:
        """Drafts of the initial model on training prompts, to fit the word guard on."""
        return self._evaluation(self.base, ("base",), ("guard",), self.folder / "guard")

    def fit_guard(self) -> None:
        """Fit a word guard for each label on the judged drafts."""
        judged = [row.judged for row in read_rows(self.guard_drafts.folder) if row.judged]
        texts = [(j.collaboration.prompt.request, j.collaboration.draft.text) for j in judged]
        verdicts = [j.verdicts[0] for j in judged]
        labels = ([v.unsafe is True for v in verdicts], [v.overrefuses is True for v in verdicts])
        self._guard.mkdir(exist_ok=True)
        for name, flags in zip(GUARDED_LABELS, labels, strict=True):
            LinearGuard.fit(texts, flags, seed=self.seed).save(self._guard / f"{name}.json")

    @property
    def evaluations(self) -> list[EvaluationJob]:
        """Every row of the tables."""
        single, alone = ("base", "safeguard", "guard"), ("collaborate",)
        measured = ("test", "general-test")
        jobs = [
            self._of("base", (*single, "collaborate", "oracle"), measured),
            self._of("single", single, measured),
            self._of("frozen", alone, measured),
        ]
        jobs += [self._of(mode, alone, (*measured, "validation")) for mode in MODES]
        jobs += [self._of(name, alone, ("test",)) for name in DESIGNS]
        return jobs

    @property
    def calibration(self) -> CalibrationJob:
        """Measure the feedback agent that `waltzrl serve --demo` serves."""
        served = self.trainings[SERVED]
        feedback = FeedbackConfig(
            model=str(served.agents / FEEDBACK), wording="tiny", max_new_tokens=MAX_NEW_TOKENS
        )
        rows = served.folder / "evaluation"
        return CalibrationJob(name="calibration", feedback=feedback, rows=rows)

    def best_mode(self) -> str:
        """Return the mode of WaltzRL with the higher F1 on the validation split."""
        f1 = {
            mode: measure(self._rows(mode, "collaborate", mode, "validation"))[0].f1.value
            for mode in MODES
        }
        return max(MODES, key=lambda mode: f1[mode] or 0.0)

    def table(self) -> list[EvaluationRow]:
        """Return the rows of the paper's table, each pattern under its name there."""
        waltz = self.best_mode()
        places = {
            "base": ("base", "base"),
            "base + safeguard": ("base", "safeguard"),
            "single-model RL": ("single", "base"),
            "single-model RL + safeguard": ("single", "safeguard"),
            "untrained collaboration": ("base", "collaborate"),
            "oracle labels": ("base", "oracle"),
            "WaltzRL": (waltz, "collaborate"),
            "WaltzRL, conversation agent frozen": ("frozen", "collaborate"),
        }
        return self._named(places)

    def modes(self) -> list[EvaluationRow]:
        """Return both modes, the paper's three reward designs, and a guard fitted to this world."""
        places = {f"WaltzRL, {mode} reward": (mode, "collaborate") for mode in MODES}
        for name in DESIGNS:
            places[f"stage 1, design {name[-1].upper()}"] = (name, "collaborate")
        places["base + word guard"] = ("base", "guard")
        places["single-model RL + word guard"] = ("single", "guard")
        return self._named(places)

    def write_report(self, folder: Path) -> Path:
        """Write table.json, modes.json and report.html with its pictures; return the page."""
        for name, rows in (("table", self.table()), ("modes", self.modes())):
            lines: Json = [table_row(line.pattern, line) for line in measure(rows)]
            write_json(folder / f"{name}.json", lines)
        curves = {
            name: read_curve(training.folder)
            for name, training in self.trainings.items()
            if name not in DESIGNS
        }
        settings = {
            "seed": str(self.seed),
            "WaltzRL reward": f"{self.best_mode()} (higher F1 on the validation split)",
            "versions": f"waltzrl {__version__}, torch {torch.__version__}",
        }
        title = f"WaltzRL demo, seed {self.seed}"
        report = EvaluationReport(title=title, rows=self.table(), curves=curves, settings=settings)
        return write_report(folder, report)

    def _named(self, places: Mapping[str, tuple[str, str]]) -> list[EvaluationRow]:
        rows_of_patterns = (self._rows(*place, name, *REPORTED) for name, place in places.items())
        return [row for rows in rows_of_patterns for row in rows]

    def _rows(self, training: str, pattern: str, name: str, *splits: str) -> list[EvaluationRow]:
        """Read a pattern's rows on some splits, renamed to `name`."""
        folder = self.folder / training / "evaluation"
        return [
            replace(row, pattern=name)
            for row in read_rows(folder)
            if row.pattern == pattern and row.prompt_id.split("/")[1] in splits
        ]

    def _of(self, name: str, patterns: tuple[str, ...], sets: tuple[str, ...]) -> EvaluationJob:
        training = self.base if name == "base" else self.trainings[name]
        return self._evaluation(training, patterns, sets, training.folder / "evaluation")

    def _evaluation(
        self, training: TrainingJob, patterns: tuple[str, ...], sets: tuple[str, ...], folder: Path
    ) -> EvaluationJob:
        contest = EvaluationConfig(
            patterns=patterns,
            conversation=str(training.agents / CONVERSATION),
            feedback=str(training.agents / FEEDBACK),
            guard=str(self._guard) if "guard" in patterns else None,
            wording="tiny",
            max_new_tokens=MAX_NEW_TOKENS,
            concurrency=128,
        )
        files = tuple(self.file(name) for name in sets)
        return EvaluationJob(name=training.name, contest=contest, sets=files, folder=folder)

    def recipe(self, file: str, prompts: Sequence[str], changes: Sequence[str]) -> Recipe:
        """Read one of the demo's recipes, to train on some of its sets with some changes."""
        paths = [str(self.file(name)) for name in prompts]
        with as_file(files(__package__) / file) as path:
            return load_recipe(path, [f"seed={self.seed}", f"data.prompts={paths}", *changes])

    def file(self, name: str) -> Path:
        """Return the path of the set `name`."""
        return self.data / f"{name}.jsonl"

    @property
    def _guard(self) -> Path:
        return self.folder / "guard" / "weights"
