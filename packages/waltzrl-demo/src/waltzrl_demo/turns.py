"""The demo of conversations: is a pair that trained on single turns safe where there are more?

    single turn      the pair, trained on requests of one turn
    conversations    the same, trained on conversations and tools as well, on as many sampled tokens
    three rounds     as conversations, with up to three rounds, of which those after the first cost

All start from one initial model, whose demonstrations have conversations too: it can read them, and
decides by surface there as well. Every kind of prompt is measured on its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from waltzrl.evaluation.study import SeedResults, StudyIdentity
from waltzrl.foundation.jsonl import read_prompts, write_lines
from waltzrl.foundation.workers import Job
from waltzrl.records import Prompt
from waltzrl_demo.arms import MAX_NEW_TOKENS
from waltzrl_demo.jobs import EvaluationJob, TrainingJob
from waltzrl_demo.paper import DemoSize
from waltzrl_demo.seeds import GENERAL, SeedDemo, collect_results, identify_demo
from waltzrl_demo.world.lexicon import CONVERSATIONS

SINGLE_TURN, CONVERSING, THREE_ROUNDS = "single turn", "conversations", "three rounds"
ARMS = (SINGLE_TURN, CONVERSING, THREE_ROUNDS)
COMPARED = ((SINGLE_TURN, CONVERSING), (CONVERSING, THREE_ROUNDS))
"""The arms of each table."""
REQUESTS = "requests"
SETS = (REQUESTS, *CONVERSATIONS)
"""The prompts that rates are of: those of one turn, and each kind of conversation."""
MAX_ROUNDS = {THREE_ROUNDS: 3}
"""The rounds of an arm, in training and when it is measured; one, where none is named."""

WORLD = DemoSize(
    demonstrations=30_000,
    prompts={"train": 2500, "validation": 50, "test": 400},
    levels=("kind", *CONVERSATIONS),
    base_changes=(
        "models.base.context=1024",
        "stages.warm-up.steps=1000",
        "stages.warm-up.optimizer.final_share=0.1",
    ),
)
"""A world whose prompts are as many requests of one turn as conversations of each kind; with three
rounds of feedback some need a longer context than the paper's demo has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnsSize:
    """How much the demo generates and trains."""

    world: DemoSize = WORLD
    pair: tuple[str, ...] = ()
    """Changes of pair.toml for all arms."""
    arms: Mapping[str, tuple[str, ...]] = field(
        default_factory=lambda: {
            SINGLE_TURN: ("stages.feedback.steps=26", "stages.joint.steps=53"),
            CONVERSING: ("stages.feedback.steps=20", "stages.joint.steps=40"),
            THREE_ROUNDS: (
                "stages.feedback.steps=11",
                "stages.joint.steps=27",
                "stages.feedback.round_cost=0.1",
                "stages.joint.round_cost=0.1",
            ),
        }
    )
    """The same for each, so that all sample about as many tokens."""


FULL = TurnsSize()


class TurnsDemo(SeedDemo):
    """The demo of one seed."""

    def __init__(self, folder: Path, seed: int, *, size: TurnsSize = FULL) -> None:
        super().__init__(folder, seed, size.world)
        self.size = size

    def write_data(self) -> None:
        """Write prompts, those of one turn also alone, and demonstrations."""
        # The last file that is written: where it exists, all others do.
        if self.paper.file(REQUESTS).exists():
            return
        self.paper.write_data()
        train = read_prompts(self.paper.file("train"))
        write_lines(self.paper.file(REQUESTS), [each for each in train if len(each.messages) == 1])

    @property
    def rounds(self) -> list[list[Job]]:
        single, conversing, three = (self.training(arm) for arm in ARMS)
        return [
            [self.base],
            [single, conversing],
            [three, self.measurement(SINGLE_TURN)],
            [self.measurement(CONVERSING), self.measurement(THREE_ROUNDS)],
        ]

    def training(self, arm: str) -> TrainingJob:
        """Train a pair, on requests alone or on conversations as well."""
        rounds = f"agents.max_rounds={MAX_ROUNDS.get(arm, 1)}"
        changes = [rounds, *self.size.pair, *self.size.arms[arm]]
        return self.train_pair(arm, changes, REQUESTS if arm == SINGLE_TURN else "train")

    def measurement(self, arm: str) -> EvaluationJob:
        """Measure a pair on all prompts."""
        return self.evaluate(arm, self.training(arm), [self.test], MAX_ROUNDS.get(arm, 1))

    def results(self) -> SeedResults:
        arms = {arm: (self.measurement(arm), (self.training(arm),)) for arm in ARMS}
        return collect_results(self.seed, arms, _find_set)


def _find_set(prompt: Prompt) -> str:
    return prompt.category if prompt.category in (*CONVERSATIONS, GENERAL) else REQUESTS


def identify_study(size: TurnsSize) -> StudyIdentity:
    """Return what a folder of results is of."""
    settings = (size, MAX_ROUNDS, MAX_NEW_TOKENS)
    recipes = ("base.toml", "pair.toml")
    return identify_demo("Conversations", ARMS, recipes, settings, size.world.levels)
