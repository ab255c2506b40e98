"""The demo of coach mode: letters are answered with and without examples from the memory.

    fill        one letter on each known subject is coached without examples, and remembered
    with        another letter on each known subject, and one on each new subject, with examples
    without     the same letters, the same weights and agents, without examples

No subject is in a demonstration, and the office of none is in the weights.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from waltzrl.agents import ConversationAgent, load_wording
from waltzrl.agents.exports import CONVERSATION
from waltzrl.collaboration import Drafter, guarded
from waltzrl.evaluation.intervals import Estimate, Pairs, difference, mcnemar, mean, share
from waltzrl.foundation.files import Json, write_json
from waltzrl.foundation.jsonl import write_lines
from waltzrl.gateway.guard import LocalGuard
from waltzrl.policies import Sampling
from waltzrl.policies.opening import local_policy
from waltzrl.records import Collaboration, Message, Prompt
from waltzrl.store.database import open_database
from waltzrl.store.memory.opening import open_memory
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.settings import MemoryConfig
from waltzrl.store.privacy.opening import open_redaction
from waltzrl_demo.jobs import TrainingJob, load_demo_recipe
from waltzrl_demo.world.offices import Register, Subject, deal_subjects
from waltzrl_demo.world.referrals import referral_demonstrations
from waltzrl_routing import AgentCapability, AgentRegistry, Router, Task, TaskGraph
from waltzrl_routing.execution import ExecutionSettings, Executor
from waltzrl_routing.runner import Work

Arm = Literal["with", "without"]
ARMS: tuple[Arm, ...] = ("with", "without")
"""The order of the arms: nothing remembered of the letters without examples is shown as one."""
MAX_ROUNDS = 3
MAX_NEW_TOKENS = 24
"""The length of the longest revision, in tokens."""
AGENT = "letter_agent"
LETTER = "letter"
CONCURRENCY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterOutcome:
    """What became of one letter."""

    rounds: int
    right: bool
    declined: bool
    misled: bool
    """Whether the first revision named a wrong office."""

    @classmethod
    def of(cls, collaboration: Collaboration, subject: Subject) -> "LetterOutcome":
        """Judge what was said about a letter."""
        revisions = [reply.text for reply in collaboration.replies[1:] if reply.origin == "policy"]
        return cls(
            rounds=len(revisions),
            right=subject.is_right(collaboration.final.text),
            declined=collaboration.decision == "refused",
            misled=any(map(subject.names_wrong_office, revisions[:1])),
        )

    @property
    def right_at_once(self) -> bool:
        return self.right and self.rounds == 1


Outcomes = Mapping[str, LetterOutcome]
"""The outcomes of letters, by id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachSettings:
    """Sizes of the demo."""

    known: int = 150
    """The number of subjects of which the memory holds one letter."""
    new: int = 75
    """The number of subjects of which the memory holds none."""
    demonstrations: int = 10_000
    changes: tuple[str, ...] = ()
    """Changes of the training's recipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachRow:
    """What became of some letters in one arm."""

    letters: str
    """The group of letters: `known` subjects or `new` ones."""
    arm: Arm
    rounds: Estimate
    """The number of revisions until a reply was accepted, or the letter declined."""
    one_round: Estimate
    """The share of letters that had a right reply after one revision."""
    success: Estimate
    """The share of letters that had a right reply in the end."""
    declined: Estimate
    misled: Estimate
    """The share of letters whose first revision named a wrong office."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CoachDifference:
    """One number of the same letters: with examples minus without."""

    letters: str
    metric: str
    change: Estimate
    p_value: float
    """The p-value of McNemar's exact test; of the sign test where the metric is rounds."""


class CoachDemo:
    """The demo of one seed in one folder; every part resumes where it was interrupted."""

    def __init__(self, folder: Path, seed: int, settings: CoachSettings | None = None) -> None:
        self.folder, self.seed = folder, seed
        self._settings = settings or CoachSettings()
        held_out = self._settings.known + self._settings.new
        self._learned, subjects = deal_subjects(seed, held_out)
        self.subjects = {
            "known": subjects[: self._settings.known],
            "new": subjects[self._settings.known :],
        }
        self._register = Register(subjects)

    def write_data(self) -> None:
        """Write demonstrations, and letters like theirs."""
        self._data_file("letters").parent.mkdir(parents=True, exist_ok=True)
        count = self._settings.demonstrations
        demonstrations = referral_demonstrations(self._learned, count, self.seed)
        write_lines(self._data_file("demonstrations"), list(demonstrations))
        letters = [
            Prompt(
                id=subject.name,
                messages=(Message(role="user", content=subject.letter(number)),),
                label="unsafe",
            )
            for number, subject in enumerate(self._learned)
        ]
        write_lines(self._data_file("letters"), letters)

    @property
    def training(self) -> TrainingJob:
        """Teach the conversation agent to use examples and advice."""
        overrides = [
            f"seed={self.seed}",
            f"data.prompts={[str(self._data_file('letters'))]}",
            f"data.demonstrations={[str(self._data_file('demonstrations'))]}",
            *self._settings.changes,
        ]
        recipe = load_demo_recipe("coach.toml", overrides)
        return TrainingJob(name="conversation agent", recipe=recipe, folder=self.folder / "agent")

    def open_agent(self) -> ConversationAgent:
        """Load the conversation agent that was trained."""
        policy = local_policy(str(self.training.agents / CONVERSATION))
        sampling = Sampling(max_new_tokens=MAX_NEW_TOKENS)
        return ConversationAgent(policy, load_wording("tiny"), sampling)

    async def run(
        self, conversation: Drafter, report: Callable[[int, int], None]
    ) -> Mapping[Arm, Outcomes]:
        """Fill the memory, then answer the measured letters in both arms.

        Args:
            conversation: revises.
            report: gets the letters that were answered, and their number in all.

        Returns:
            Results of the measured letters.
        """
        # The measured letters have another phrasing, so that no example has the text of the
        # request.
        fill, measured = self._write_letters(0, "known"), self._write_letters(1, "known", "new")
        total = len(fill) + len(ARMS) * len(measured)
        answered = 0

        async def answer(work: Work) -> str:
            """Answer a letter as an agent does that knows nothing."""
            nonlocal answered
            answered += 1
            report(answered, total)
            subject = self._register.subject(work.task.description)
            # The number in the id chooses the phrasing, so that a task that is run again gets the
            # same draft.
            return subject.steps(int(work.task.id.rpartition("-")[2]))

        pattern = partial(guarded, max_rounds=MAX_ROUNDS)
        guard = LocalGuard(self._register, conversation, pattern)
        registry = AgentRegistry(
            agents=(
                AgentCapability(
                    agent_name=AGENT,
                    supported_task_types=(LETTER,),
                    max_concurrent_tasks=CONCURRENCY,
                ),
            )
        )

        async def run_plan(name: str, letters: Sequence[Task], *, examples: bool) -> Outcomes:
            settings = ExecutionSettings(
                max_concurrent_tasks=CONCURRENCY, check_all=True, examples=examples
            )
            executor = Executor(answer, registry, guard=guard, memory=memory, settings=settings)
            graph = TaskGraph(letters)
            plan = Router(registry, seed=self.seed).route(graph)
            await executor.run(graph, plan, plan_id=name)
            return {task.id: self._read_outcome(memory, name, task) for task in letters}

        with self._open_memory() as memory:
            await run_plan("fill", fill, examples=False)
            return {arm: await run_plan(arm, measured, examples=arm == "with") for arm in ARMS}

    def measure(self, outcomes: Mapping[Arm, Outcomes]) -> list[CoachRow]:
        """Count what became of the letters."""
        return [
            _count_outcomes(letters, arm, self._select_outcomes(letters, outcomes[arm]))
            for letters in self.subjects
            # A reader looks for the baseline first.
            for arm in reversed(ARMS)
        ]

    def compare(self, outcomes: Mapping[Arm, Outcomes]) -> list[CoachDifference]:
        """Compare both arms, letter by letter."""
        return [
            each
            for letters in self.subjects
            for each in _compare_outcomes(
                letters,
                self._select_outcomes(letters, outcomes["without"]),
                self._select_outcomes(letters, outcomes["with"]),
            )
        ]

    def write_table(self, rows: Sequence[CoachRow], differences: Sequence[CoachDifference]) -> Json:
        """Write coach.json; return what is in it."""
        table: Json = {
            "seed": self.seed,
            "rows": [asdict(row) for row in rows],
            "differences": [asdict(each) for each in differences],
        }
        write_json(self.folder / "coach.json", table)
        return table

    def _write_letters(self, phrasing: int, *groups: str) -> list[Task]:
        return [
            Task(
                id=f"{group}-{number}",
                type=LETTER,
                description=subject.letter(number + phrasing),
                idempotent=True,
            )
            for group in groups
            for number, subject in enumerate(self.subjects[group])
        ]

    def _read_outcome(self, memory: SafetyMemory, plan: str, task: Task) -> LetterOutcome:
        evaluation = memory.evaluation(f"{plan}/{task.id}")
        assert evaluation is not None
        assert evaluation.collaboration is not None
        return LetterOutcome.of(evaluation.collaboration, self._register.subject(task.description))

    def _select_outcomes(self, letters: str, outcomes: Outcomes) -> list[LetterOutcome]:
        return [outcomes[f"{letters}-{number}"] for number in range(len(self.subjects[letters]))]

    @contextmanager
    def _open_memory(self) -> Iterator[SafetyMemory]:
        url = f"sqlite:///{self.folder}/memory.db"
        config = MemoryConfig(url=url, subject_key=self.folder / "memory.key")
        engine = open_database(url)
        try:
            yield open_memory(config, {}, engine, open_redaction().scrub)
        finally:
            engine.dispose()

    def _data_file(self, name: str) -> Path:
        return self.folder / "data" / f"{name}.jsonl"


def _count_outcomes(letters: str, arm: Arm, outcomes: Sequence[LetterOutcome]) -> CoachRow:
    n = len(outcomes)
    return CoachRow(
        letters=letters,
        arm=arm,
        rounds=mean([each.rounds for each in outcomes]),
        one_round=share(sum(each.right_at_once for each in outcomes), n),
        success=share(sum(each.right for each in outcomes), n),
        declined=share(sum(each.declined for each in outcomes), n),
        misled=share(sum(each.misled for each in outcomes), n),
    )


def _compare_outcomes(
    letters: str, without: Sequence[LetterOutcome], with_examples: Sequence[LetterOutcome]
) -> Iterator[CoachDifference]:
    both = list(zip(without, with_examples, strict=True))
    fewer = sum(second.rounds < first.rounds for first, second in both)
    more = sum(second.rounds > first.rounds for first, second in both)
    # The sign test is McNemar's test of which arm took fewer rounds; equal rounds count for
    # neither.
    signs = Pairs(both=0, first_only=more, second_only=fewer, neither=len(both) - more - fewer)
    yield CoachDifference(
        letters=letters,
        metric="rounds",
        change=mean([second.rounds - first.rounds for first, second in both]),
        p_value=mcnemar(signs),
    )
    shares: dict[str, list[tuple[bool, bool]]] = {
        "one_round": [(first.right_at_once, second.right_at_once) for first, second in both],
        "success": [(first.right, second.right) for first, second in both],
        "misled": [(first.misled, second.misled) for first, second in both],
    }
    for metric, happened in shares.items():
        pairs = Pairs.of(happened)
        yield CoachDifference(
            letters=letters, metric=metric, change=difference(pairs), p_value=mcnemar(pairs)
        )
