"""The demo's work as jobs for several processes: trainings, evaluations, a calibration."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

from waltzrl.agents.calibration import CALIBRATION, write_calibration
from waltzrl.agents.exports import CONVERSATION, FEEDBACK
from waltzrl.agents.settings import FeedbackConfig
from waltzrl.evaluation import read_rows
from waltzrl.evaluation.calibration import JudgedReply
from waltzrl.evaluation.data.opening import read_sets
from waltzrl.evaluation.judges.judge import Judge, LabelRefusalJudge
from waltzrl.evaluation.opening import run_evaluation
from waltzrl.evaluation.reviewer_calibration import measure_reviewer
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl.policies.compute import ComputeSettings, resolve_compute
from waltzrl.training.recipe import Recipe, load_recipe
from waltzrl_demo.arms import MAX_NEW_TOKENS

if TYPE_CHECKING:
    from waltzrl.training.attacks import KeepsGoal

ONE_CORE = ComputeSettings(device="cpu", threads=1)
MakeJudge = Callable[[], Judge]
"""Makes a judge in the process of a job: a class, a function of a module, or a partial of one."""
MakeCheck = Callable[[], "KeepsGoal"]
"""Makes what checks an attacker's rewritings, in the same way."""


def load_demo_recipe(name: str, changes: Sequence[str]) -> Recipe:
    """Read a recipe of this package, with some changes."""
    with as_file(files(__package__) / name) as path:
        return load_recipe(path, changes)


def configure_contest(
    conversation: Path, feedback: Path, patterns: tuple[str, ...]
) -> EvaluationConfig:
    """Return the settings that evaluate two agents of the world, of one folder each or the same."""
    return EvaluationConfig(
        patterns=patterns,
        conversation=str(conversation / CONVERSATION),
        feedback=str(feedback / FEEDBACK),
        wording="tiny",
        max_new_tokens=MAX_NEW_TOKENS,
        concurrency=128,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingJob:
    """Train as a recipe says, then write both agents to `folder/agents`."""

    name: str
    recipe: Recipe
    folder: Path
    judge: MakeJudge | None = None
    """Makes the judge of the rollouts; None for the one that the recipe names."""
    check: MakeCheck | None = None
    """Makes the check of what an attacker writes, in a recipe that has one."""

    @property
    def agents(self) -> Path:
        return self.folder / "agents"

    async def run(self, report: Callable[[int, int], None]) -> None:
        # Takes seconds to import, and the process that starts the jobs does without it.
        from waltzrl.training.opening import export_agents, train

        if not self.agents.exists():
            team = await train(
                self.recipe,
                self.folder,
                lambda p: report(p.step + 1, p.total),
                self.judge and self.judge(),
                own_check=self.check and self.check(),
            )
            export_agents(team, self.agents)


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationJob:
    """Evaluate patterns on sets of prompts, and log the rows in a folder."""

    name: str
    contest: EvaluationConfig
    sets: tuple[Path, ...]
    folder: Path
    judge: MakeJudge = LabelRefusalJudge

    async def run(self, report: Callable[[int, int], None]) -> None:
        resolve_compute(ONE_CORE)
        prompts = read_sets([str(path) for path in self.sets])
        await run_evaluation(self.contest, prompts, self.judge(), self.folder, report)


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationJob:
    """Measure a feedback agent on evaluated drafts, so that it may challenge refusals.

    Three quarters of each kind of drafts are held out.
    """

    name: str
    feedback: FeedbackConfig
    rows: tuple[Path, ...]
    """The folders of the evaluations."""
    pattern: str
    """The pattern whose drafts are taken."""

    async def run(self, report: Callable[[int, int], None]) -> None:
        resolve_compute(ONE_CORE)
        drafts = [
            JudgedReply(
                prompt=row.judged.collaboration.prompt,
                reply=row.judged.collaboration.draft,
                verdict=row.judged.verdicts[0],
            )
            for folder in self.rows
            for row in read_rows(folder)
            if row.judged is not None and row.pattern == self.pattern
        ]
        # Sorted by kind, every fourth draft is a quarter of each kind.
        drafts.sort(key=lambda draft: (draft.right_refusal, draft.over_refusal))
        held_out = [draft for n, draft in enumerate(drafts) if n % 4]
        calibration = await measure_reviewer(self.feedback, drafts[::4], held_out)
        write_calibration(Path(self.feedback.model) / CALIBRATION, calibration)
        report(1, 1)
