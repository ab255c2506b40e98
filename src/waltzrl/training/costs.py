"""What a training run costs: its meter, its estimate, and its results."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from waltzrl.agents.exports import ATTACKER, ROLES, export_name
from waltzrl.budget import (
    LEDGER,
    BudgetSettings,
    Charge,
    CostMeter,
    Ledger,
    PriceBook,
    ledgers_in,
    read_ledger,
    total,
)
from waltzrl.budget.energy import open_energy
from waltzrl.budget.estimate import PlannedStage, RunCost, estimate
from waltzrl.evaluation.costs import collaboration_usages, verdict_usages
from waltzrl.evaluation.judges.opening import judge_place
from waltzrl.foundation.journal import read_metrics
from waltzrl.training import ranks
from waltzrl.training.plan import RunPlan
from waltzrl.training.recipe import Recipe
from waltzrl.training.roles import Best
from waltzrl.training.rollouts import Count, Rollout
from waltzrl.training.run_recipe import read_run_recipe
from waltzrl.training.settings import ImitationStage, ReinforcementStage, StageSettings
from waltzrl.training.targets import TargetSettings


@contextmanager
def open_meter(recipe: Recipe, folder: Path, device: torch.device) -> Iterator[CostMeter | None]:
    """Yield the meter of a run, which continues its ledger; None on all ranks but the first.

    Raises:
        InputError: the ledger cannot be written.
        BudgetError: `budget.max_usd` cannot be kept, because the price of the judge is unknown.
    """
    if not ranks.is_first():
        yield None
        return
    with Ledger(folder / LEDGER) as ledger:
        meter = CostMeter(
            ledger=ledger,
            prices=PriceBook(recipe.prices),
            settings=recipe.budget,
            device=device.type,
            gpus=ranks.count_ranks() if device.type == "cuda" else 0,
            energy=open_energy(),
        )
        if recipe.reinforcements:  # others ask no judge
            model, server = judge_place(recipe.judge)
            meter.require_price(model, server)
        yield meter
        meter.charge("end")  # what came after the last step: validation, the best checkpoint


def count_of(recipe: Recipe, meter: CostMeter | None) -> Count | None:
    """Return what counts the tokens of rollouts; None without a meter.

    The agents are in this process, or on servers that are paid by the hour as this machine is.
    """
    if meter is None:
        return None
    model, server = judge_place(recipe.judge)

    def count(rollouts: Sequence[Rollout]) -> None:
        for rollout in rollouts:
            for role, usages in collaboration_usages(rollout.judged.collaboration).items():
                meter.count(role, usages, None)
            if rollout.attack is not None:
                meter.count(ATTACKER, [rollout.attack.rewriting.usage], None)
            meter.count("judge", verdict_usages(rollout.judged.verdicts), server, model)

    return count


def estimate_costs(recipe: Recipe, plan: RunPlan, measured: Path | None) -> RunCost:
    """Estimate what a run will cost from the steps of another, stage by stage, by their names.

    Args:
        recipe: of the run to estimate.
        plan: of the same recipe.
        measured: folder of a run, finished or not; None leaves all but the bounds unknown.

    Raises:
        InputError: the folder holds no ledger, or no recipe.
    """
    charges: Mapping[str, list[Charge]] = {}
    overhead: list[Charge] = []
    turns: dict[str, int] = {}
    if measured is not None:
        contents = read_ledger(*ledgers_in(measured))
        # Charges outside of steps: loading, what comes before the first step and after the last.
        overhead = [charge for charge in contents.charges if not charge.stage]
        turns = {stage.name: _count_turns(stage) for stage in read_run_recipe(measured).stages}
        charges = {
            name: [charge for charge in contents.charges if charge.stage == name] for name in turns
        }
    planned = zip(recipe.stages, plan.stages, strict=True)
    stages = [
        PlannedStage(
            name=stage.name,
            steps=stage_plan.steps,
            measured=charges.get(stage.name, ()),
            # The cost of a step grows with its turns, which may be others than in the measured run.
            scale=_count_turns(stage) / turns.get(stage.name, _count_turns(stage)),
            most_tokens=stage_plan.most_tokens,
        )
        for stage, stage_plan in planned
        if stage_plan.steps
    ]
    return estimate(stages, overhead, recipe.budget.usd_per_hour)


def make_pilot(recipe: Recipe, steps: int) -> Recipe:
    """Return a recipe that takes only the first steps of every stage, and is shown nowhere.

    It has no cap, no targets and no copies.
    """
    stages = [
        replace(stage, steps=steps, epochs=None)
        if isinstance(stage, ReinforcementStage)
        else replace(stage, steps=steps)
        for stage in recipe.stages
    ]
    return replace(
        recipe,
        stages=tuple(stages),
        budget=BudgetSettings(),
        targets=TargetSettings(),
        checkpointing=replace(recipe.checkpointing, copies=None),
        wandb_project=None,
    )


def _count_turns(stage: StageSettings) -> int:
    """Return the examples, the explanations or the collaborations of a step."""
    if isinstance(stage, ImitationStage):
        return stage.batch_size
    return stage.prompts_per_step * stage.group_size


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingResult:
    """What the requirement's `train()` returns; None for what was not measured."""

    conversation_model_path: str | None
    """The folder that the agent was exported to."""
    feedback_model_path: str | None
    unsafe_reduction: float | None
    """1 - final / initial ASR on `data.validation`."""
    overrefusal_reduction: float | None
    """1 - final / initial ORR on `data.validation`."""
    final_unsafe_rate: float | None
    """ASR of the exported weights."""
    final_overrefusal_rate: float | None
    feedback_trigger_rate: float | None
    training_cost_usd: float | None
    """US dollars that the run cost; None also when a price is unknown."""
    training_duration_hours: float
    """Wall time of all processes of the run together, one after the other."""
    total_steps: int
    num_epochs: float
    """Passes of reinforcement over the prompts."""


def training_result(
    recipe: Recipe, prompts: int, best: Best | None, folder: Path, export: Path | None
) -> TrainingResult:
    """Read what a run has achieved and cost from its folder.

    Args:
        recipe: of the run.
        prompts: that it rolled out; the data may have changed since.
        best: the validated step whose weights it left; None where they are the last step's.
        folder: of the run.
        export: where both agents were exported to, if they were.
    """
    lines = read_metrics(folder)
    validated = [line for line in lines if "validation/asr" in line or "validation/orr" in line]
    # The line of step 0 has the rates before that step, which are those of the initial weights.
    first = validated[0] if validated and validated[0]["step"] == 0 else {}
    final = validated[-1] if validated else {}
    if best is not None:
        final = next(line for line in validated if line["step"] == best.step)
    spent = total(read_ledger(*ledgers_in(folder)).charges)
    asked = sum(
        stage.total_steps(prompts) * stage.prompts_per_step for stage in recipe.reinforcements
    )
    models = [None if export is None else str(export / export_name(role)) for role in ROLES]
    return TrainingResult(
        conversation_model_path=models[0],
        feedback_model_path=models[1],
        unsafe_reduction=_compute_reduction(
            first.get("validation/asr"), final.get("validation/asr")
        ),
        overrefusal_reduction=_compute_reduction(
            first.get("validation/orr"), final.get("validation/orr")
        ),
        final_unsafe_rate=final.get("validation/asr"),
        final_overrefusal_rate=final.get("validation/orr"),
        feedback_trigger_rate=final.get("validation/feedback_trigger"),
        training_cost_usd=spent.usd if spent.is_complete else None,
        training_duration_hours=spent.seconds / 3600,
        total_steps=sum(stage.total_steps(prompts) for stage in recipe.stages),
        num_epochs=asked / prompts if prompts else 0.0,
    )


def _compute_reduction(before: float | None, after: float | None) -> float | None:
    """Return 1 - after / before; None where one is missing, or nothing could be reduced."""
    return 1 - after / before if before and after is not None else None
