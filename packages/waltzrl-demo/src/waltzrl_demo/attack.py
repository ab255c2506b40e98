"""The demo of an attacker as third player: is a pair that trained against one harder to attack?

    pair                 the pair of the paper's demo, trained alone
    pair and attacker    the same, with an attacker that learns beside it and rewrites half of its
                         prompts; as many sampled tokens, so fewer steps

Each pair then stays as it is while a new attacker, which neither has met, learns against it. This
attacker rewrites the test prompts. Everything else is measured as in the paper's demo.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from waltzrl.agents.exports import ATTACKER, CONVERSATION, export_name
from waltzrl.evaluation.study import SeedResults, StudyIdentity
from waltzrl.foundation.jsonl import read_prompts, write_lines
from waltzrl.foundation.workers import Job
from waltzrl.records import Prompt
from waltzrl_demo.arms import MAX_NEW_TOKENS, SINGLE, changes_of
from waltzrl_demo.jobs import ONE_CORE, EvaluationJob, TrainingJob
from waltzrl_demo.paper import DemoSize
from waltzrl_demo.seeds import GENERAL, SeedDemo, collect_results, identify_demo
from waltzrl_demo.world import World
from waltzrl_demo.world.rewritings import (
    ELICIT,
    PROVOKE,
    WorldGoals,
    rewriting_demonstrations,
)
from waltzrl_demo.world.rewritings import MAX_NEW_TOKENS as MOST_TOKENS

PAIR, WITH_ATTACKER = "pair", "pair and attacker"
ARMS = (PAIR, WITH_ATTACKER)
PLAIN, WRAPPED, ATTACKED = "plain", "unseen wrappers", "attacked"
SETS = (PLAIN, WRAPPED, ATTACKED)
"""The prompts that rates are of: bare requests, the same in wrappers that no pair and no attacker
trained on, and what an attacker makes of these."""

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


class AttackDemo(SeedDemo):
    """The demo of one seed."""

    def __init__(self, folder: Path, seed: int, *, size: AttackSize = FULL) -> None:
        super().__init__(folder, seed, size.world)
        self.size = size

    def write_data(self) -> None:
        """Write prompts, bare ones too, and the demonstrations of both kinds."""
        # The last file that is written: where it exists, all others do.
        if self.paper.file("rewritings").exists():
            return
        self.paper.write_data()
        world = World.create(self.seed, self.size.world.levels)
        goals, test = WorldGoals(world), read_prompts(self.test)
        bare = [
            _with_text(prompt, f"{prompt.id}/bare", goals.find_request(prompt.request), PLAIN)
            for prompt in test
        ]
        write_lines(self.paper.file(PLAIN), bare)
        unseen = {prompt.request for prompt in (*test, *bare)}
        shown = rewriting_demonstrations(world, self.size.rewritings, self.seed, unseen)
        write_lines(self.paper.file("rewritings"), list(shown))

    @property
    def rounds(self) -> list[list[Job]]:
        return [
            [self.base],
            [self.taught, self.training(PAIR)],
            [self.training(WITH_ATTACKER), self.probe(PAIR)],
            [self.probe(WITH_ATTACKER), self.measurement(PAIR)],
            [self.measurement(WITH_ATTACKER)],
        ]

    @property
    def single(self) -> TrainingJob:
        """Train a conversation agent alone, on about as many tokens as the pair."""
        return self.train_pair(SINGLE, [*changes_of(SINGLE), *self.size.single])

    @property
    def taught(self) -> TrainingJob:
        """Teach a copy of the initial model to rewrite requests at random."""
        changes = [
            f"data.demonstrations={[str(self.paper.file('rewritings'))]}",
            f"models.base={self.base.agents / CONVERSATION}",
            "compute.threads=1",
            *self.size.taught,
        ]
        return self.train("attacker", self.paper.recipe("base.toml", ["train"], changes))

    def training(self, arm: str) -> TrainingJob:
        """Train a pair, alone or against an attacker."""
        if arm == PAIR:
            return self.train_pair(arm, self.size.pair)
        return self._check(self.train_pair(arm, [*self._attacker, *self.size.attacked]))

    def probe(self, arm: str) -> TrainingJob:
        """Train a new attacker against a pair that stays as it is."""
        changes = [
            f"models.pair={self.training(arm).agents}",
            *self._attacker,
            *self.size.attack,
        ]
        recipe = self.paper.train_recipe("attack.toml", changes)
        return self._check(self.train(f"attack on {arm}", recipe))

    def measurement(self, arm: str) -> "AttackMeasurement":
        """Measure a pair on all sets."""
        pair = self.training(arm)
        attacked = self.folder / f"attacked-{arm.replace(' ', '-')}.jsonl"
        sets = (self.paper.file(PLAIN), self.test, attacked)
        evaluation = self.evaluate(arm, pair, sets)
        return AttackMeasurement(
            name=evaluation.name,
            attacker=self.probe(arm).agents / export_name(ATTACKER),
            goals=self.test,
            attacked=attacked,
            seed=self.seed,
            evaluation=evaluation,
        )

    def results(self) -> SeedResults:
        arms = {
            arm: (self.measurement(arm).evaluation, (self.training(arm), self.probe(arm)))
            for arm in ARMS
        }
        return collect_results(self.seed, arms, _find_set)

    @property
    def _attacker(self) -> tuple[str, ...]:
        return (
            f"attacker.base={self.taught.agents / CONVERSATION}",
            f"attacker.max_new_tokens={MOST_TOKENS}",
            f"attacker.elicit={ELICIT}",
            f"attacker.provoke={PROVOKE}",
        )

    def _check(self, job: TrainingJob) -> TrainingJob:
        return replace(job, check=partial(world_goals, self.seed))


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


def _find_set(prompt: Prompt) -> str:
    if prompt.category == GENERAL:
        return GENERAL
    return prompt.source if prompt.source in (PLAIN, ATTACKED) else WRAPPED


def identify_study(size: AttackSize) -> StudyIdentity:
    """Return what a folder of results is of."""
    return identify_demo(
        "Against attackers",
        ARMS,
        ("base.toml", "pair.toml", "attack.toml"),
        (size, ELICIT, PROVOKE, MOST_TOKENS, MAX_NEW_TOKENS),
    )
