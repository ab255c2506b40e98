"""A recipe: everything that a training run is told, read from TOML and written to JSON."""

import json
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Annotated

from pydantic import Field

from waltzrl.budget import BudgetSettings, ModelPrice
from waltzrl.evaluation.data.opening import MEMORY
from waltzrl.foundation.files import Json
from waltzrl.foundation.journal import WandbProject
from waltzrl.foundation.texts import HIDDEN
from waltzrl.foundation.validation import (
    adapter_of,
    read_table,
    require_finite,
    validate_table,
    with_overrides,
)
from waltzrl.policies.compute import ComputeSettings
from waltzrl.training.settings import (
    AgentSettings,
    AttackerSettings,
    CheckpointSettings,
    ImitationStage,
    ModelSettings,
    ReinforcementStage,
    TeacherStage,
)
from waltzrl.training.synonyms import SYNONYMS
from waltzrl.training.targets import TargetSettings

logger = logging.getLogger(__name__)

PASSWORD = re.compile(r'(://[^/\s:@"]*:)[^/\s@"]*@')
"""The password in a URL, wherever that stands in a recipe, and what is before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSettings:
    """Where prompts and demonstrations come from; `read_sets` lists the forms of a name."""

    prompts: tuple[str, ...] = ()
    """A run of imitation alone needs none."""
    held_out: tuple[str, ...] = ()
    """Sets that no training prompt may touch; the run does not start if one does."""
    validation: tuple[str, ...] = ()
    """Sets to measure the agents on while they train, and to choose the best checkpoint by; neither
    training prompts nor held-out ones may touch them."""
    validation_limit: Annotated[int, Field(ge=2)] = 256
    """Most prompts to validate on, taken evenly from the sets."""
    demonstrations: tuple[str, ...] = ()
    """Examples to imitate; only stages of kind `imitation` need them."""
    solutions: tuple[str, ...] = ()
    """Files of questions with their solutions, for a teacher to explain: JSON Lines with the
    columns `question`, `solution` and, where there is an explanation, `reasoning_trace`."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Most prompts, and most demonstrations, to take; for trying out a recipe."""

    def __post_init__(self) -> None:
        if memories := [name for name in self.validation if name.startswith(MEMORY)]:
            raise ValueError(
                f"data.validation: {memories[0]} changes while the run lasts; export its prompts "
                "with waltzrl collect, and name the file"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole training run."""

    models: ModelSettings
    data: DataSettings
    agents: AgentSettings
    stages: tuple[
        Annotated[ImitationStage | TeacherStage | ReinforcementStage, Field(discriminator="kind")],
        ...,
    ]
    """The stages of the run, one after the other; `kind` says which keys one has."""
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    """The seed of everything random."""
    judge: str = "refusal"
    """Labels every reply: `refusal`, from the prompts' labels and a refusal detector, or a model,
    such as `wildguard:MODEL@URL`; docs/evaluation.md has all."""
    judge_prompts: bool = False
    """The judge says whether a prompt is harmful, not the prompt's label."""
    use_rlt_optimization: bool = False
    """The teacher explains the verdicts of the reviews in `data.demonstrations`, and so warms up
    the reasoning of the feedback agent. Without it, it explains `data.solutions`."""
    wandb_project: str | None = None
    """The project on Weights & Biases that shows the metrics too, in one run for each journal; with
    `WANDB_MODE=offline` no server is asked. A run may be resumed with another, or without."""
    attacker: AttackerSettings | None = None
    """A third role, which plays in the stages with an `attacked_share`; none by default."""
    targets: TargetSettings = field(default_factory=TargetSettings)
    checkpointing: CheckpointSettings = field(default_factory=CheckpointSettings)
    compute: ComputeSettings = field(default_factory=ComputeSettings)
    budget: BudgetSettings = field(default_factory=BudgetSettings)
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    """Prices of models on servers, by their names; others are those of genai-prices."""

    def __post_init__(self) -> None:
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) < len(names):
            raise ValueError(f"stages need names, each its own, got {names}")
        # Roles start from copies of the base, so whatever trains the base comes before them.
        trains_roles = [isinstance(stage, ReinforcementStage) for stage in self.stages]
        if trains_roles != sorted(trains_roles):
            raise ValueError(
                "stages of imitation and of a teacher come first: they make the base of both agents"
            )
        if not self.data.demonstrations and any(
            stage.imitates == "demonstrations" for stage in self.imitations
        ):
            raise ValueError("a stage of imitation needs data.demonstrations")
        if self.compute.rollouts != "local" and self.models.layout != "adapters":
            raise ValueError(
                f"compute.rollouts on vLLM needs models.layout adapters, got {self.models.layout}:"
                " a server loads adapters while it runs, not whole models"
            )
        if (self.imitations or self.teacher) and self.models.pair is not None:
            raise ValueError("a stage of imitation teaches a base, and models.pair has none")
        stages = [stage.name for stage in self.reinforcements if "feedback" in stage.learns]
        if self.agents.max_rounds == 0 and stages:
            raise ValueError(
                f"agents.max_rounds = 0 leaves stage {stages[0]!r} no feedback to learn from; make"
                " it 1 or more, or let the stage learn conversation alone"
            )
        charged = [stage.name for stage in self.reinforcements if stage.round_cost]
        if self.agents.max_rounds < 2 and charged:
            raise ValueError(
                f"stage {charged[0]!r} has a round_cost, and no collaboration has a second round;"
                f" set agents.max_rounds to 2 or more, got {self.agents.max_rounds}"
            )
        self._check_attacker()
        self._check_exercises()
        self._check_teacher()
        self._check_targets()

    def _check_attacker(self) -> None:
        """Check that there is an attacker exactly where a stage wants one, and that it can play."""
        attacked = [stage.name for stage in self.reinforcements if stage.attacked_share]
        if attacked and self.attacker is None:
            raise ValueError(
                f"stage {attacked[0]!r} has an attacked_share, and the recipe has no attacker; add"
                " a table [attacker] with base and max_new_tokens"
            )
        if self.attacker is None:
            return
        if not attacked:
            raise ValueError(
                "attacker plays in no stage; set attacked_share in a stage of reinforcement, or"
                " remove the table"
            )
        if self.compute.rollouts != "local" or self.compute.engine != "local":
            raise ValueError(
                "attacker: its model is in the processes that learn; set compute.rollouts and"
                " compute.engine to local"
            )

    def _check_exercises(self) -> None:
        """Check that there is something to explain, exactly where a stage needs it."""
        kinds = [
            stage.imitates if isinstance(stage, ImitationStage) else stage.kind
            for stage in self.stages
        ]
        needing = {"teacher", "traces", "explanations", "solutions"}.intersection(kinds)
        if not needing and (self.use_rlt_optimization or self.data.solutions):
            raise ValueError(
                "data.solutions and use_rlt_optimization are for a teacher; add a stage of kind"
                " teacher, or one of imitation with imitates = 'traces' or 'solutions'"
            )
        if self.use_rlt_optimization and self.data.solutions:
            raise ValueError(
                "use_rlt_optimization: the teacher explains the reviews of data.demonstrations;"
                " remove data.solutions"
            )
        exercises = self.data.demonstrations if self.use_rlt_optimization else self.data.solutions
        if needing and not exercises:
            raise ValueError(
                f"a stage of {min(needing)} needs data.solutions, or data.demonstrations with"
                " use_rlt_optimization = true"
            )

    def _check_targets(self) -> None:
        """Check that there are steps to measure a target by."""
        if self.targets.warm_up_loss is not None and not self.imitations:
            raise ValueError("targets.warm_up_loss needs a stage of imitation with steps")
        last = self.validated_stage
        if self.targets.reward_gain is not None and (last is None or last.steps == 0):
            raise ValueError("targets.reward_gain needs a stage of reinforcement with steps")

    def _check_teacher(self) -> None:
        """Check that there is one teacher at most, and that the base learns what it wrote."""
        teachers = [n for n, stage in enumerate(self.stages) if isinstance(stage, TeacherStage)]
        learners = [
            n
            for n, stage in enumerate(self.stages)
            if isinstance(stage, ImitationStage) and stage.imitates == "explanations"
        ]
        if len(teachers) > 1:
            raise ValueError(f"a run has one teacher, got {len(teachers)} such stages")
        if bool(teachers) != bool(learners) or (teachers and learners[0] < teachers[0]):
            raise ValueError(
                "a stage of kind teacher is followed by one of imitation with imitates ="
                " 'explanations', and nothing else imitates those"
            )

    @property
    def needs_labels(self) -> bool:
        """Whether the judge can only score replies to prompts that have a label."""
        return self.judge == "refusal"

    @property
    def imitations(self) -> list[ImitationStage]:
        """The stages of imitation that have steps."""
        return [stage for stage in self.stages if isinstance(stage, ImitationStage) and stage.steps]

    @property
    def teacher(self) -> TeacherStage | None:
        return next((stage for stage in self.stages if isinstance(stage, TeacherStage)), None)

    @property
    def reinforcements(self) -> list[ReinforcementStage]:
        return [stage for stage in self.stages if isinstance(stage, ReinforcementStage)]

    @property
    def replays_drafts(self) -> bool:
        """Whether the initial conversation agent drafts in any stage."""
        return any(stage.replayed_share for stage in self.reinforcements)

    @property
    def validated_stage(self) -> ReinforcementStage | None:
        """The stage in whose pattern agents are validated; None where all stages imitate.

        It is the last one that has steps, or else the last one.
        """
        stages = self.reinforcements
        trained = [stage for stage in stages if stage.steps != 0]  # None: counted in epochs
        return next(reversed(trained or stages), None)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe.

    Args:
        path: a TOML file.
        overrides: `key=value`, later ones win; a stage goes by its name, `stages.joint.steps=100`.

    Raises:
        RecipeError: the file or an override is not TOML, a key is unknown or missing, or a value
            is of the wrong type, not finite or impossible.
    """
    table = with_overrides(read_table(path), overrides)
    require_finite(table, str(path))
    recipe = validate_table(Recipe, table, str(path), SYNONYMS)
    if recipe.judge == "harm":
        logger.warning(
            "%s: the judge 'harm' calls more than half of ordinary good answers unsafe, so "
            "training with it punishes help; use refusal, or a judge with a model",
            path,
        )
    return recipe


def recipe_json(recipe: Recipe) -> dict[str, Json]:
    """Return the recipe with every default written out."""
    resolved: dict[str, Json] = adapter_of(Recipe).dump_python(recipe, mode="json")
    return resolved


def find_wandb_project(recipe: Recipe) -> WandbProject | None:
    """Return where on Weights & Biases the run is shown, without passwords; None where it is not.

    Raises:
        ModuleNotFoundError: it is to be, and wandb is not installed.
    """
    if recipe.wandb_project is None:
        return None
    import_module("wandb")  # missing, it is named before anything is trained
    shown = PASSWORD.sub(rf"\1{HIDDEN}@", json.dumps(recipe_json(recipe)))
    return WandbProject(name=recipe.wandb_project, config=json.loads(shown))


def with_memory_prompts(recipe: Recipe, memory: str) -> Recipe:
    """Put the prompts of a gateway's memory first, where `data.limit` leaves them in.

    Args:
        recipe: any.
        memory: `memory:<url>`, or the URL alone.
    """
    name = MEMORY + memory.removeprefix(MEMORY)
    prompts = (name, *(other for other in recipe.data.prompts if other != name))
    return replace(recipe, data=replace(recipe.data, prompts=prompts))
