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
from operator import eq
from pathlib import Path
from statistics import fmean
from typing import Literal

import msgspec

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.agents.exports import CONVERSATION
from waltzrl.evaluation.data.solutions import CLOSING, SolvedQuestion, read_solutions
from waltzrl.evaluation.intervals import Estimate, Pairs, difference, mcnemar
from waltzrl.evaluation.paired import SeedDifference, compare_seeds, mean_over_seeds
from waltzrl.foundation.files import Json, write_json
from waltzrl.foundation.jsonl import write_lines
from waltzrl.policies import Sampling
from waltzrl.policies.compute import resolve_compute
from waltzrl.policies.opening import local_policy
from waltzrl.records import Demonstration
from waltzrl_demo.jobs import ONE_CORE, TrainingJob, load_demo_recipe
from waltzrl_demo.world import World
from waltzrl_demo.world.derived import (
    KINDS,
    demonstrate_draft,
    demonstrate_facts,
    derived_requests,
    solve_request,
)
from waltzrl_demo.world.requests import WorldRequest

Arm = Literal["plain", "untrained", "trained"]
ARMS: tuple[Arm, ...] = ("plain", "untrained", "trained")
"""The arms: a student learns from bare solutions, or from those of an untrained or a trained
teacher."""
EXPLANATIONS = "explanations.jsonl"
BATCH = 64
"""The number of demonstrations in a step of a student."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TeacherDemoSettings:
    """Sizes of the demo."""

    questions: int = 480
    """The number of questions to learn from; there are 640."""
    tested: int = 128
    """The number of questions in the test; there are 256."""
    repeats: int = 4
    """The number of demonstrations of each of the 64 facts."""
    student_tokens: int = 200_000
    """The number of tokens that every student reads: prompts and replies."""
    changes: tuple[str, ...] = ()
    """Changes of the teacher's recipe."""


class TeacherSeedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one seed showed."""

    seed: int
    right: Mapping[str, Sequence[bool]]
    """[tested] Whether each of the student's answers is right, by arm."""
    tokens: Mapping[str, int]
    """The number of tokens that the student read, by arm."""
    in_steps: Mapping[str, float]
    """The share of the explanations that have every step, and all right, by teacher."""

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
            await self._make_teacher_job(teacher).run(lambda done, total: None)
            report(taught := taught + 1, parts)
        right: dict[str, list[bool]] = {}
        tokens: dict[str, int] = {}
        for arm in ARMS:
            student, tokens[arm] = self._make_student_job(arm)
            await student.run(lambda done, total: None)
            right[arm] = await self._check_answers(student.agents, tested)
            report(taught := taught + 1, parts)
        result = TeacherSeedResult(
            seed=self.seed,
            right=right,
            tokens=tokens,
            in_steps={teacher: self._share_in_steps(teacher) for teacher in teachers},
        )
        write_json(self.result_file, msgspec.to_builtins(result))

    def _write_data(self) -> list[SolvedQuestion]:
        """Write what is learnt from; return what is tested."""
        (self.folder / "data").mkdir(parents=True, exist_ok=True)
        draw = random.Random(f"traces/{self.seed}")
        rows = [solve_request(*asked, draw.choice(KINDS)) for asked in self._list_questions()]
        write_lines(self._data_file("solutions"), rows)
        write_lines(self._data_file("facts"), self._demonstrate_facts())
        tested = derived_requests(self._world, "test", self.seed)[: self.settings.tested]
        return [solve_request(*asked, "nothing") for asked in tested]

    @property
    def _world(self) -> World:
        return World.create(self.seed)

    def _list_questions(self) -> list[tuple[WorldRequest, str]]:
        """Return the questions to learn from."""
        return derived_requests(self._world, "train", self.seed)[: self.settings.questions]

    def _demonstrate_facts(self) -> Iterator[Demonstration]:
        return demonstrate_facts(self._world, self.settings.repeats)

    def _make_teacher_job(self, name: str) -> TrainingJob:
        """Return the run that writes the explanations; the untrained one's also makes the base."""
        # One recipe has the stages of both: each teacher leaves one of them out.
        unneeded = "stages.teacher.steps=0"
        base = []
        if name == "trained":
            unneeded, base = "stages.warm-up.steps=0", [f"models.base={self._base_folder}"]
        data = [
            f"data.solutions={[str(self._data_file('solutions'))]}",
            f"data.demonstrations={[str(self._data_file('facts'))]}",
        ]
        overrides = [f"seed={self.seed}", *data, *self.settings.changes, *base, unneeded]
        recipe = load_demo_recipe("teacher.toml", overrides)
        return TrainingJob(name=name, recipe=recipe, folder=self.folder / name)

    def _make_student_job(self, arm: Arm) -> tuple[TrainingJob, int]:
        """Return a student's training, and how many tokens it reads."""
        examples = self._data_file(f"student-{arm}")
        shown = self._list_examples(arm)
        write_lines(examples, shown)
        mean = self._count_mean_tokens(shown)
        # All students read as many tokens, so longer explanations mean fewer steps.
        steps = max(1, round(self.settings.student_tokens / (mean * BATCH)))
        overrides = [
            f"seed={self.seed}",
            f"models.base={self._base_folder}",
            f"data.demonstrations={[str(examples)]}",
            f"stages.student.steps={steps}",
            f"stages.student.batch_size={BATCH}",
        ]
        recipe = load_demo_recipe("student.toml", overrides)
        folder = self.folder / f"student-{arm}"
        return TrainingJob(name=arm, recipe=recipe, folder=folder), round(steps * BATCH * mean)

    def _list_examples(self, arm: Arm) -> list[Demonstration]:
        if arm == "plain":
            written = read_solutions(self._data_file("solutions"))
            rows = [msgspec.structs.replace(row, reasoning_trace="") for row in written.values()]
        else:
            rows = [row for row in self._read_explanations(arm) if row.reasoning_trace]
        own = (demonstrate_draft(f"{n}", row.question, row.reply) for n, row in enumerate(rows))
        return [*self._demonstrate_facts(), *own]

    def _read_explanations(self, teacher: str) -> list[SolvedQuestion]:
        return list(read_solutions(self.folder / teacher / EXPLANATIONS).values())

    def _share_in_steps(self, teacher: str) -> float:
        wanted = [solve_request(*asked, "steps") for asked in self._list_questions()]
        return fmean(map(eq, self._read_explanations(teacher), wanted))

    def _count_mean_tokens(self, shown: Sequence[Demonstration]) -> float:
        # Takes seconds to import, and results that exist are shown without it.
        from waltzrl.training.samples import demonstration_sample

        agents = self._open_agents(self._base_folder)
        turns = [demonstration_sample(demonstration, *agents).tokens for demonstration in shown]
        return fmean(len(turn.prompt_ids) + len(turn.ids) for turn in turns)

    async def _check_answers(self, agents: Path, tested: Sequence[SolvedQuestion]) -> list[bool]:
        conversation, _ = self._open_agents(agents / CONVERSATION)
        asked = [demonstrate_draft("", row.question, "").collaboration.prompt for row in tested]
        replies = await asyncio.gather(*map(conversation.draft, asked))
        return [
            reply.text.rpartition(CLOSING)[2] == row.solution
            for reply, row in zip(replies, tested, strict=True)
        ]

    def _open_agents(self, folder: Path) -> tuple[ConversationAgent, FeedbackAgent]:
        policy, wording = local_policy(str(folder)), load_wording("tiny")
        sampling = Sampling(max_new_tokens=32)
        return (
            ConversationAgent(policy, wording, sampling),
            FeedbackAgent(policy, wording, sampling),
        )

    @property
    def _base_folder(self) -> Path:
        return self.folder / "untrained" / "agents" / CONVERSATION

    def _data_file(self, name: str) -> Path:
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
    """The other arm."""
    change: Estimate
    """The accuracy of the trained arm minus that of the other, over the questions of all seeds; n
    counts questions."""
    p_value: float
    """The p-value of McNemar's exact test of the same questions."""
    over_seeds: SeedDifference | None
    """The same difference over the seeds' accuracies; None for a single seed."""


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
