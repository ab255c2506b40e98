"""The demo of a teacher: students learn from trained explanations, from untrained ones, from none.

    untrained   a small model learns facts and traces of three kinds, and explains every question
    trained     the same model, after its student's reward has trained it, explains every question
    students    the same model learns the facts, and the explained or bare solutions

All students read as many tokens, and are tested on other questions that follow from the facts.
"""

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import as_file, files
from operator import eq
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.agents.exports import CONVERSATION
from waltzrl.demo.jobs import ONE_CORE, TrainingJob
from waltzrl.demo.world import World
from waltzrl.demo.world.derived import KINDS, demonstration, derived_requests, facts, solved
from waltzrl.demo.world.prompts import WorldRequest
from waltzrl.evaluation.data import SolvedQuestion, read_solutions, write_lines
from waltzrl.evaluation.data.solutions import CLOSING
from waltzrl.evaluation.intervals import Estimate, Pairs, difference, mcnemar
from waltzrl.evaluation.paired import SeedDifference, compare_seeds, mean_over_seeds
from waltzrl.foundation.files import Json, write_json
from waltzrl.policies import Sampling
from waltzrl.policies.compute import resolve_compute
from waltzrl.policies.opening import local_policy
from waltzrl.records import Demonstration
from waltzrl.training.recipe import Recipe, load_recipe

Arm = Literal["plain", "untrained", "trained"]
ARMS: tuple[Arm, ...] = ("plain", "untrained", "trained")
"""What the student learns from: bare solutions, or those of an untrained or a trained teacher."""
EXPLANATIONS = "explanations.jsonl"
BATCH = 64
"""Demonstrations in a step of a student."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherDemoSettings:
    """Sizes of the demo."""

    questions: int = 480
    """To learn from; there are 640."""
    tested: int = 128
    """Of 256."""
    repeats: int = 4
    """Of each of the 64 facts."""
    student_tokens: int = 200_000
    """That every student reads: prompts and replies."""
    changes: tuple[str, ...] = ()
    """To the recipe of the teacher."""


class TeacherSeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed showed."""

    seed: int
    right: Mapping[str, Sequence[bool]]
    """By arm: [tested] whether the student's answer is right."""
    tokens: Mapping[str, int]
    """By arm: what the student read."""
    in_steps: Mapping[str, float]
    """By teacher: share of the explanations that have every step, and all right."""

    def accuracy(self, arm: str) -> float:
        return fmean(self.right[arm])


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherSeedJob:
    """The demo with one seed, in one process with one thread; every training resumes."""

    seed: int
    folder: Path
    settings: TeacherDemoSettings = TeacherDemoSettings()

    @property
    def name(self) -> str:
        return f"seed {self.seed}"

    @property
    def result_file(self) -> Path:
        return self.folder / "result.json"

    async def run(self, report: Callable[[int, int], None]) -> None:
        """Do what is not done yet, and report parts done."""
        resolve_compute(ONE_CORE)
        tested = self._write_data()
        parts = 2 + len(ARMS)
        taught, teachers = 0, ("untrained", "trained")
        for teacher in teachers:
            await self._teacher(teacher).run(lambda done, total: None)
            report(taught := taught + 1, parts)
        right: dict[str, list[bool]] = {}
        tokens: dict[str, int] = {}
        for arm in ARMS:
            student, tokens[arm] = self._student(arm)
            await student.run(lambda done, total: None)
            right[arm] = await self._answers(student.agents, tested)
            report(taught := taught + 1, parts)
        result = TeacherSeedResult(
            seed=self.seed,
            right=right,
            tokens=tokens,
            in_steps={teacher: self._in_steps(teacher) for teacher in teachers},
        )
        write_json(self.result_file, msgspec.to_builtins(result))

    def _write_data(self) -> list[SolvedQuestion]:
        """Write what is learnt from; return what is tested."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        draw = random.Random(f"traces/{self.seed}")
        rows = [solved(*asked, draw.choice(KINDS)) for asked in self._asked()]
        write_lines(self._file("solutions"), rows)
        write_lines(self._file("facts"), self._facts())
        tested = derived_requests(self._world, "test", self.seed)[: self.settings.tested]
        return [solved(*asked, "nothing") for asked in tested]

    @property
    def _world(self) -> World:
        return World.create(self.seed)

    def _asked(self) -> list[tuple[WorldRequest, str]]:
        """Return the questions to learn from."""
        return derived_requests(self._world, "train", self.seed)[: self.settings.questions]

    def _facts(self) -> Iterator[Demonstration]:
        return facts(self._world, self.settings.repeats)

    def _teacher(self, name: str) -> TrainingJob:
        """Return the run that writes the explanations; the untrained one's also makes the base."""
        unneeded = "stages.teacher.steps=0"
        base = []
        if name == "trained":
            unneeded, base = "stages.warm-up.steps=0", [f"models.base={self._base}"]
        data = [
            f"data.solutions={[str(self._file('solutions'))]}",
            f"data.demonstrations={[str(self._file('facts'))]}",
        ]
        overrides = [f"seed={self.seed}", *data, *self.settings.changes, *base, unneeded]
        recipe = _recipe("teacher.toml", overrides)
        return TrainingJob(name=name, recipe=recipe, folder=self.folder / name)

    def _student(self, arm: Arm) -> tuple[TrainingJob, int]:
        """Return a student's training, and how many tokens it reads."""
        examples = self._file(f"student-{arm}")
        shown = self._examples(arm)
        write_lines(examples, shown)
        mean = self._mean_tokens(shown)
        steps = max(1, round(self.settings.student_tokens / (mean * BATCH)))
        overrides = [
            f"seed={self.seed}",
            f"models.base={self._base}",
            f"data.demonstrations={[str(examples)]}",
            f"stages.student.steps={steps}",
            f"stages.student.batch_size={BATCH}",
        ]
        recipe = _recipe("student.toml", overrides)
        folder = self.folder / f"student-{arm}"
        return TrainingJob(name=arm, recipe=recipe, folder=folder), round(steps * BATCH * mean)

    def _examples(self, arm: Arm) -> list[Demonstration]:
        if arm == "plain":
            written = read_solutions(self._file("solutions"))
            rows = [msgspec.structs.replace(row, reasoning_trace="") for row in written.values()]
        else:
            rows = [row for row in self._explained(arm) if row.reasoning_trace]
        own = (demonstration(f"{n}", row.question, row.reply) for n, row in enumerate(rows))
        return [*self._facts(), *own]

    def _explained(self, teacher: str) -> list[SolvedQuestion]:
        return list(read_solutions(self.folder / teacher / EXPLANATIONS).values())

    def _in_steps(self, teacher: str) -> float:
        wanted = [solved(*asked, "steps") for asked in self._asked()]
        return fmean(map(eq, self._explained(teacher), wanted))

    def _mean_tokens(self, shown: Sequence[Demonstration]) -> float:
        from waltzrl.training.samples import demonstration_sample

        agents = self._agents(self._base)
        turns = [demonstration_sample(demonstration, *agents).tokens for demonstration in shown]
        return fmean(len(turn.prompt_ids) + len(turn.ids) for turn in turns)

    async def _answers(self, agents: Path, tested: Sequence[SolvedQuestion]) -> list[bool]:
        conversation, _ = self._agents(agents / CONVERSATION)
        asked = [demonstration("", row.question, "").collaboration.prompt for row in tested]
        replies = await asyncio.gather(*map(conversation.draft, asked))
        return [
            reply.text.rpartition(CLOSING)[2] == row.solution
            for reply, row in zip(replies, tested, strict=True)
        ]

    def _agents(self, folder: Path) -> tuple[ConversationAgent, FeedbackAgent]:
        policy, wording = local_policy(str(folder)), load_wording("tiny")
        sampling = Sampling(max_new_tokens=32)
        return (
            ConversationAgent(policy, wording, sampling),
            FeedbackAgent(policy, wording, sampling),
        )

    @property
    def _base(self) -> Path:
        return self.folder / "untrained" / "agents" / CONVERSATION

    def _file(self, name: str) -> Path:
        return self.folder / "data" / f"{name}.jsonl"


def read_result(job: TeacherSeedJob) -> TeacherSeedResult:
    """Read what a job that is finished showed."""
    return msgspec.json.decode(job.result_file.read_bytes(), type=TeacherSeedResult)


def mean_accuracy(results: Sequence[TeacherSeedResult], arm: Arm) -> Estimate:
    """Return the mean over seeds, with Student's interval."""
    return mean_over_seeds([result.accuracy(arm) for result in results])


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmComparison:
    """The trained explanations against another arm."""

    arm: Arm
    """The other one."""
    change: Estimate
    """Trained minus the other, of the questions of all seeds; n counts questions."""
    p_value: float
    """McNemar's exact test of the same."""
    over_seeds: SeedDifference | None
    """The same of the seeds' accuracies; None of a single seed."""


def compare_arms(results: Sequence[TeacherSeedResult]) -> list[ArmComparison]:
    """Compare the trained explanations with each other arm, question by question."""
    comparisons = []
    trained = [result.accuracy("trained") for result in results]
    for arm in ARMS[:-1]:
        pairs = Pairs.of(
            both
            for result in results
            for both in zip(result.right[arm], result.right["trained"], strict=True)
        )
        other = [result.accuracy(arm) for result in results]
        comparison = ArmComparison(
            arm=arm,
            change=difference(pairs),
            p_value=mcnemar(pairs),
            over_seeds=compare_seeds(other, trained) if len(results) > 1 else None,
        )
        comparisons.append(comparison)
    return comparisons


def teacher_table(
    results: Sequence[TeacherSeedResult], comparisons: Sequence[ArmComparison]
) -> Json:
    """Return the numbers of all seeds, without single answers."""
    return {
        "seeds": [
            {
                "seed": result.seed,
                "accuracy": {arm: result.accuracy(arm) for arm in ARMS},
                "tokens": dict(result.tokens),
                "in_steps": dict(result.in_steps),
            }
            for result in results
        ],
        "comparisons": [asdict(each) for each in comparisons],
    }


def _recipe(name: str, overrides: Sequence[str]) -> Recipe:
    with as_file(files(__package__) / name) as path:
        return load_recipe(path, overrides)
