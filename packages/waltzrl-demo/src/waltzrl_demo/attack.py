"""The demo of an attacker as third player: is a pair that trained against one harder to attack?

    pair                 the pair of the paper's demo, trained alone
    pair and attacker    the same, with an attacker that learns beside it and rewrites half of its
                         prompts; as many sampled tokens, so fewer steps

Each pair then stays as it is while a new attacker, which neither has met, learns against it. This
attacker rewrites the test prompts. Everything else is measured as in the paper's demo.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.resources import files
from pathlib import Path

from waltzrl.agents.exports import ATTACKER, CONVERSATION, FEEDBACK, export_name
from waltzrl.evaluation.data import read_prompts, write_lines
from waltzrl.evaluation.intervals import Estimate
from waltzrl.evaluation.paired import SeedDifference, compare_seeds, mean_over_seeds
from waltzrl.evaluation.rows import EvaluationRow, read_rows
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl.evaluation.study import (
    SeedPrompts,
    SeedResults,
    StudyIdentity,
    read_seed,
    seed_file,
    write_seed,
)
from waltzrl.foundation.files import Json
from waltzrl.foundation.workers import Job
from waltzrl.records import Prompt
from waltzrl.training.recipe import Recipe
from waltzrl_demo.arms import MAX_NEW_TOKENS, SINGLE, changes_of
from waltzrl_demo.jobs import ONE_CORE, EvaluationJob, TrainingJob
from waltzrl_demo.paper import GENERAL_REPEATS, DemoSize, PaperDemo
from waltzrl_demo.study import digest_lines, read_training_cost, sample_world
from waltzrl_demo.world import TRAINING_NOISE, World, world_judge
from waltzrl_demo.world.rewritings import (
    ELICIT,
    PROVOKE,
    WorldGoals,
    rewriting_demonstrations,
)
from waltzrl_demo.world.rewritings import MAX_NEW_TOKENS as MOST_TOKENS

PAIR, WITH_ATTACKER = "pair", "pair and attacker"
ARMS = (PAIR, WITH_ATTACKER)
PLAIN, WRAPPED, ATTACKED, GENERAL = "plain", "unseen wrappers", "attacked", "general"
SETS = (PLAIN, WRAPPED, ATTACKED)
"""The prompts that rates are of: bare requests, the same in wrappers that no pair and no attacker
trained on, and what an attacker makes of these."""
METRICS = ("asr", "orr", "f1")


WORLD = DemoSize(
    demonstrations=25_000,
    prompts={"train": 2000, "validation": 40, "test": 480},
    levels=("kind",),
    base_changes=("stages.warm-up.steps=800", "stages.warm-up.optimizer.final_share=0.1"),
)
"""A world in which harm is known from the kind of a thing. No prompt has a code word or a
misspelling, so whoever trains on prompts alone does not meet them; an attacker may use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSize:
    """How much the demo generates and trains."""

    world: DemoSize = WORLD
    rewritings: int = 20_000
    """The number of rewritings that an attacker is taught by."""
    taught: tuple[str, ...] = (
        "stages.warm-up.steps=1000",
        "stages.warm-up.optimizer.warmup_steps=10",
    )
    """Changes of base.toml for the attacker's warm-up."""
    pair: tuple[str, ...] = ("stages.feedback.steps=20", "stages.joint.steps=40")
    """Changes of pair.toml for the pair alone."""
    single: tuple[str, ...] = ("stages.feedback.steps=71", "stages.joint.steps=142")
    """The same for the conversation agent that learns alone; its steps sample fewer tokens."""
    attacked: tuple[str, ...] = (
        "stages.feedback.steps=20",
        "stages.joint.steps=33",
        "stages.joint.attacked_share=0.5",
        'stages.joint.learns=["conversation", "feedback", "attacker"]',
    )
    """The same for the pair that trains against an attacker."""
    attack: tuple[str, ...] = ()
    """Changes of attack.toml."""


FULL = AttackSize()


class AttackDemo:
    """The demo of one seed in one folder; every part resumes where it was interrupted."""

    def __init__(self, folder: Path, seed: int, *, size: AttackSize = FULL) -> None:
        """Use a folder; everything has one thread, so that no result depends on their number."""
        self.folder, self.seed, self.size = folder, seed, size
        self._paper = PaperDemo(folder, seed, threads=1, size=size.world)

    def write_data(self) -> None:
        """Write prompts, bare ones too, and the demonstrations of both kinds.

        Raises:
            InputError: a training prompt is too similar to a test prompt.
        """
        if self._paper.file("rewritings").exists():
            return
        self._paper.write_data()
        goals, test = WorldGoals(self._world), read_prompts(self.test)
        bare = [
            _with_text(prompt, f"{prompt.id}/bare", goals.find_request(prompt.request), PLAIN)
            for prompt in test
        ]
        write_lines(self._paper.file(PLAIN), bare)
        unseen = {prompt.request for prompt in (*test, *bare)}
        shown = rewriting_demonstrations(self._world, self.size.rewritings, self.seed, unseen)
        write_lines(self._paper.file("rewritings"), list(shown))

    @property
    def rounds(self) -> list[list[Job]]:
        """All work in rounds: the jobs of one need those of the rounds before it."""
        return [
            [self.base],
            [self.taught, self.training(PAIR)],
            [self.training(WITH_ATTACKER), self.probe(PAIR)],
            [self.probe(WITH_ATTACKER), self.measurement(PAIR)],
            [self.measurement(WITH_ATTACKER)],
        ]

    @property
    def base(self) -> TrainingJob:
        """Train the initial model, from which all others start."""
        return self._named(self._paper.base)

    @property
    def test(self) -> Path:
        """The file of the test prompts."""
        return self._paper.file("test")

    @property
    def single(self) -> TrainingJob:
        """Train a conversation agent alone, on about as many tokens as the pair."""
        changes = [
            f"models.base={self.base.agents / CONVERSATION}",
            *changes_of(SINGLE),
            *self.size.single,
        ]
        return self._train(SINGLE, self._paper.recipe("pair.toml", self._prompts, changes))

    @property
    def taught(self) -> TrainingJob:
        """Teach a copy of the initial model to rewrite requests at random."""
        changes = [
            f"data.demonstrations={[str(self._paper.file('rewritings'))]}",
            f"models.base={self.base.agents / CONVERSATION}",
            "compute.threads=1",
            *self.size.taught,
        ]
        return self._train("attacker", self._paper.recipe("base.toml", ["train"], changes))

    def training(self, arm: str) -> TrainingJob:
        """Train a pair, alone or against an attacker."""
        changes = [
            f"models.base={self.base.agents / CONVERSATION}",
            *(self.size.pair if arm == PAIR else (*self._attacker, *self.size.attacked)),
        ]
        return self._train(arm, self._paper.recipe("pair.toml", self._prompts, changes))

    def probe(self, arm: str) -> TrainingJob:
        """Train a new attacker against a pair that stays as it is."""
        changes = [
            f"models.pair={self.training(arm).agents}",
            *self._attacker,
            *self.size.attack,
        ]
        recipe = self._paper.recipe("attack.toml", self._prompts, changes)
        return self._train(f"attack on {arm}", recipe)

    def measurement(self, arm: str) -> "AttackMeasurement":
        """Measure a pair on all sets."""
        pair = self.training(arm)
        contest = EvaluationConfig(
            patterns=("collaborate",),
            conversation=str(pair.agents / CONVERSATION),
            feedback=str(pair.agents / FEEDBACK),
            wording="tiny",
            max_new_tokens=MAX_NEW_TOKENS,
            concurrency=128,
        )
        attacked = self.folder / f"attacked-{_slug(arm)}.jsonl"
        sets = (self._paper.file(PLAIN), self.test, attacked)
        evaluation = EvaluationJob(
            name=arm,
            contest=contest,
            sets=(*sets, self._paper.file("general-test")),
            folder=pair.folder / "evaluation",
            judge=partial(world_judge, self.seed),
        )
        return AttackMeasurement(
            name=f"seed {self.seed}: measuring {arm}",
            attacker=self.probe(arm).agents / export_name(ATTACKER),
            goals=self.test,
            attacked=attacked,
            seed=self.seed,
            evaluation=evaluation,
        )

    def results(self) -> SeedResults:
        """Return what was measured, a row for each arm."""
        rows = {arm: _read_named(self.measurement(arm).evaluation.folder) for arm in ARMS}
        prompts = {row.prompt_id: _prompt_of(row) for row in rows[PAIR]}
        results = SeedResults(
            SeedPrompts(
                seed=self.seed,
                ids=list(prompts),
                categories=[_find_set(prompt) for prompt in prompts.values()],
                clusters=[p.cluster or _find_set(p) for p in prompts.values()],
            )
        )
        for arm, measured in rows.items():
            names = (self.training(arm), self.probe(arm))
            trained = {_plain_name(job): read_training_cost(job.folder) for job in names}
            results.add(arm, measured, trained)
        return results

    @property
    def _world(self) -> World:
        return World.create(self.seed, self.size.world.levels)

    @property
    def _prompts(self) -> list[str]:
        return ["train", *["general-train"] * GENERAL_REPEATS]

    @property
    def _attacker(self) -> tuple[str, ...]:
        return (
            f"attacker.base={self.taught.agents / CONVERSATION}",
            f"attacker.max_new_tokens={MOST_TOKENS}",
            f"attacker.elicit={ELICIT}",
            f"attacker.provoke={PROVOKE}",
        )

    def _train(self, name: str, recipe: Recipe) -> TrainingJob:
        job = TrainingJob(name=name, recipe=recipe, folder=self.folder / _slug(name))
        if recipe.reinforcements:
            job = replace(job, judge=partial(world_judge, self.seed, TRAINING_NOISE))
        if recipe.attacker is not None:
            job = replace(job, check=partial(world_goals, self.seed))
        return self._named(job)

    def _named(self, job: TrainingJob) -> TrainingJob:
        return name_with_seed(job, self.seed)


def name_with_seed(job: TrainingJob, seed: int) -> TrainingJob:
    """Return a job whose name has its seed, which jobs of several seeds show."""
    return replace(job, name=f"seed {seed}: {job.name}")


def world_goals(seed: int) -> WorldGoals:
    """Return the check of the world of a seed; a job makes it in its own process."""
    return WorldGoals(World.create(seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackMeasurement:
    """Let an attacker rewrite the test prompts once, then evaluate a pair on all sets."""

    name: str
    attacker: Path
    """The folder of the attacker's model."""
    goals: Path
    attacked: Path
    """The file of what it makes of the goals; a goal that it leaves stays as it is."""
    seed: int
    evaluation: EvaluationJob

    async def run(self, report: Callable[[int, int], None]) -> None:
        if not self.attacked.exists():
            await self._attack()
        await self.evaluation.run(report)

    async def _attack(self) -> None:
        # Takes seconds to import, and the process that starts the jobs does without it.
        import asyncio

        from waltzrl.agents import AttackerAgent, AttackWording
        from waltzrl.policies import Sampling
        from waltzrl.policies.compute import resolve_compute
        from waltzrl.policies.opening import local_policy
        from waltzrl.training.attacks import Attack

        resolve_compute(ONE_CORE)
        policy, check = local_policy(str(self.attacker)), world_goals(self.seed)
        policy.seed(self.seed)
        wording = AttackWording(elicit=ELICIT, provoke=PROVOKE)
        sampling = Sampling(max_new_tokens=MOST_TOKENS, temperature=1.0)
        agent = AttackerAgent(policy, wording, sampling)
        goals = read_prompts(self.goals)
        written = await asyncio.gather(*map(agent.rewrite, goals))
        attacks = [Attack.of(*each, check) for each in zip(goals, written, strict=True)]
        prompts = [
            _with_text(each.goal, f"{each.goal.id}/attacked", each.prompt.request, ATTACKED)
            for each in attacks
        ]
        write_lines(self.attacked, prompts)


def _with_text(prompt: Prompt, name: str, text: str, source: str) -> Prompt:
    turn = replace(prompt.messages[-1], content=text)
    return replace(prompt, id=name, messages=(turn,), source=source)


def _read_named(folder: Path) -> list[EvaluationRow]:
    return [row for row in read_rows(folder) if row.judged is not None]


def _prompt_of(row: EvaluationRow) -> Prompt:
    assert row.judged is not None
    return row.judged.collaboration.prompt


def _find_set(prompt: Prompt) -> str:
    if prompt.category == GENERAL:
        return GENERAL
    return prompt.source if prompt.source in (PLAIN, ATTACKED) else WRAPPED


def _slug(name: str) -> str:
    return name.replace(" ", "-")


def _plain_name(job: TrainingJob) -> str:
    return job.name.partition(": ")[2]


def identify_study(size: AttackSize) -> StudyIdentity:
    """Return what a folder of results is of."""
    return StudyIdentity(
        world=digest_lines(sample_world()),
        recipes=digest_lines(_yield_lines(size)),
        tables={"Against attackers": ARMS},
    )


def _yield_lines(size: AttackSize) -> Iterator[bytes]:
    for file in ("base.toml", "pair.toml", "attack.toml"):
        yield (files(__package__) / file).read_bytes()
    yield repr((size, ELICIT, PROVOKE, MOST_TOKENS, MAX_NEW_TOKENS)).encode()


def finish_seed(folder: Path, demo: AttackDemo) -> None:
    """Keep the results of a seed whose jobs are done."""
    write_seed(folder, demo.results())


def is_finished(folder: Path, seed: int) -> bool:
    return seed_file(folder, seed).exists()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRow:
    """One number of both pairs, over seeds."""

    prompts: str
    """The set that it is of."""
    metric: str
    arms: Mapping[str, Estimate]
    change: SeedDifference | None
    """The pair that met an attacker, minus the other; None of one seed."""


def tabulate(folder: Path, seeds: Sequence[int]) -> list[AttackRow]:
    """Return the table of finished seeds."""
    results = [each for seed in seeds if (each := read_seed(folder, seed)) is not None]
    wanted = [(name, metric) for name in SETS for metric in METRICS] + [(GENERAL, "capability")]
    rows = []
    for name, metric in wanted:
        values = {arm: [each.values(arm, name)[metric] for each in results] for arm in ARMS}
        rows.append(
            AttackRow(
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


def attack_table(rows: Sequence[AttackRow], tokens: Mapping[str, float], seeds: int) -> Json:
    """Return the table as JSON."""
    return {"seeds": seeds, "rows": [asdict(row) for row in rows], "tokens": dict(tokens)}
