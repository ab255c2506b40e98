"""The composition root of training: a recipe becomes agents, stages and a trainer."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    contextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

from waltzrl.agents import load_wording
from waltzrl.agents.exports import LIMITS, ROLES
from waltzrl.errors import CheckpointError, MissingExtraError, RecipeError, TargetError
from waltzrl.evaluation.data.solutions import SolvedQuestion
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.evaluation.judges.opening import judge_place, open_judge
from waltzrl.evaluation.patterns import Advice
from waltzrl.foundation.files import Json
from waltzrl.foundation.journal import read_metrics
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.foundation.texts import without_credentials
from waltzrl.policies.compute import Compute, resolve_compute
from waltzrl.records import CHARACTERS_PER_TOKEN, Demonstration, Prompt
from waltzrl.training.attacks import KeepsGoal, find_check, keeps_by_words
from waltzrl.training.data import (
    find_prompt,
    keep_remembered,
    reads_what_grows,
    rollout_prompts,
    training_demonstrations,
    training_solutions,
    validation_prompts,
)
from waltzrl.training.judging import RunJudge, require_judge
from waltzrl.training.recipe import DataSettings, Recipe, find_wandb_project
from waltzrl.training.rewards import FeedbackReward, find_reward
from waltzrl.training.run_recipe import read_run_recipe, require_same, write_data, write_recipe
from waltzrl.training.settings import ReinforcementStage
from waltzrl.training.targets import missed_gain

try:
    from waltzrl.policies.weights import BASE_TITLE
    from waltzrl.training import ranks
    from waltzrl.training.checkpoints import export_roles, weights_digest
    from waltzrl.training.copies import RunCopy
    from waltzrl.training.costs import count_of, open_meter
    from waltzrl.training.learner import learner_on
    from waltzrl.training.models import add_attacker, continue_roles, make_roles
    from waltzrl.training.plan import DataSize, RunPlan, plan_attacker, plan_run
    from waltzrl.training.roles import Best, Team, require_context
    from waltzrl.training.rollouts import (
        Collaborators,
        Count,
        RankSampler,
        Sampler,
        open_servers,
    )
    from waltzrl.training.stages import Reinforcement
    from waltzrl.training.trainer import Report, Trainer, role_states
    from waltzrl.training.validation import Validation
    from waltzrl.training.warm_up import WarmUp
except ModuleNotFoundError as missing:
    raise MissingExtraError("training", "PyTorch", "train") from missing


OpenSampler = Callable[[Recipe, Collaborators, Path], AbstractAsyncContextManager[Sampler]]
"""A function that opens what samples for a run: for its agents and its judge, in its folder."""


def open_ranks_or_servers(
    recipe: Recipe, collaborators: Collaborators, folder: Path
) -> AbstractAsyncContextManager[Sampler]:
    """Open what samples where Ray does not: the ranks, or the servers that the recipe names."""
    if recipe.compute.servers:
        return open_servers(recipe.compute.servers, collaborators, folder)
    return nullcontext(RankSampler(collaborators=collaborators))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a training left."""

    weights: Mapping[str, str]
    """Digests of the weights, by `weights_of`; empty if nobody asked."""
    prompts: int
    """Prompts that were rolled out; 0 in a run of imitation alone."""
    best: Best | None
    """The validated step whose weights these are; None where they are the last step's."""


async def train(
    recipe: Recipe,
    folder: Path,
    report: Report,
    own_judge: Judge | None = None,
    own_reward: FeedbackReward | None = None,
    own_check: KeepsGoal | None = None,
) -> Team:
    """Train what the recipe says in `folder`, continuing where an earlier call was interrupted.

    Args:
        recipe: names everything but `own_judge` and `own_reward`.
        folder: the run directory.
        report: called after every step.
        own_judge: scores the replies in place of the recipe's judge. The run's recipe holds its
            name, so that a run is not continued with another one.
        own_reward: of the feedback agent, in place of what the stages name. The run's recipe holds
            its name.
        own_check: of what the attacker writes, in place of the recipe's, as with the reward.

    Raises:
        WaltzError: the data, the base, a reward or the folder is unfit, or training diverged.
    """
    own = _OwnParts(judge=own_judge, reward=own_reward, check=own_check)
    team, _ = await _train_team(recipe, folder, report, own)
    return team


@dataclass(frozen=True, slots=True, kw_only=True)
class _OwnParts:
    """What a caller has made itself; None for what the recipe names."""

    judge: Judge | None = None
    reward: FeedbackReward | None = None
    check: KeepsGoal | None = None

    def named_in(self, recipe: Recipe) -> Recipe:
        """Return the recipe with the names of these parts.

        Raises:
            RecipeError: there is a check, and no attacker.
        """
        if self.judge is not None:
            recipe = replace(recipe, judge=self.judge.name)
        if self.reward is not None:
            recipe = _with_reward(recipe, self.reward)
        if self.check is not None:
            if recipe.attacker is None:
                raise RecipeError("own_check checks what an attacker writes; add [attacker]")
            attacker = replace(recipe.attacker, check=_name_function(self.check))
            recipe = replace(recipe, attacker=attacker)
        return recipe


async def _train_team(
    recipe: Recipe,
    folder: Path,
    report: Report,
    own: _OwnParts,
    open_sampler: OpenSampler = open_ranks_or_servers,
) -> tuple[Team, int]:
    """Train, and return the team and how many prompts there are; see `train`."""
    recipe = own.named_in(recipe)
    keeps_goal = own.check or (find_check(recipe.attacker.check) if recipe.attacker else None)
    compute = resolve_compute(recipe.compute)
    wandb = find_wandb_project(recipe)
    rewards = {
        stage.name: own.reward or find_reward(stage.reward) for stage in recipe.reinforcements
    }
    opening = open_judge(recipe.judge, judges_prompts=recipe.judge_prompts, cached=True)
    async with nullcontext(own.judge) if own.judge else opening as judge:
        with (
            RunDirectory(folder) if ranks.is_first() else nullcontext() as run,
            open_copy(recipe, folder) if ranks.is_first() else nullcontext() as copy,
            open_meter(recipe, folder, compute.device) as meter,
        ):
            begins = recipe.reinforcements and not (folder / "metrics.jsonl").exists()
            # Else a judge that does not answer would only be noticed after the warm-up.
            if own.judge is None and begins and judge_place(recipe.judge)[1] and ranks.is_first():
                await require_judge(recipe.judge, judges_prompts=recipe.judge_prompts)
            with ranks.first_before_others():  # what the first writes, the others read
                data, prompts, demonstrations, solutions = _read_data(recipe, folder, run)
                warm_up = WarmUp(
                    recipe=replace(recipe, data=data),
                    folder=folder,
                    compute=compute,
                    prompts=prompts,
                    demonstrations=demonstrations,
                    solutions=solutions,
                    meter=meter,
                    wandb=wandb,
                    copy=copy,
                )
                base = None if recipe.models.pair is not None else warm_up.open_base()
            if base is None:
                team = continue_roles(
                    recipe.models, recipe.agents, compute, replays=recipe.replays_drafts
                )
            else:
                base = await warm_up.run(base, report)
                team = make_roles(
                    *(recipe.models, recipe.agents, base, compute, recipe.seed),
                    replays=recipe.replays_drafts,
                )
                del base  # the roles have their copies
                if not recipe.reinforcements:
                    return team, 0
            if recipe.attacker is not None:
                team = add_attacker(team, recipe.attacker, compute)
            # The warm-up has told about the pair that it makes.
            known = () if recipe.models.pair is not None else ROLES
            require_context(
                {name: role.agent for name, role in team.roles.items() if name not in known},
                prompts,
                recipe.agents.max_rounds,
                partial(find_prompt, data),
            )
            count = count_of(recipe, meter)
            # This very dictionary is saved, and filled again when a run resumes.
            class_counts: dict[str, float] = {}
            advice = Advice.demonstrated(demonstrations)
            collaborators = Collaborators(
                team=team, judge=RunJudge(judge, folder), keeps_goal=keeps_goal or keeps_by_words
            )
            async with open_sampler(recipe, collaborators, folder) as sampler:
                stages = [
                    Reinforcement(
                        settings=stage,
                        team=team,
                        prompts=prompts,
                        sampler=sampler,
                        reward=rewards[stage.name],
                        max_rounds=recipe.agents.max_rounds,
                        class_counts=class_counts,
                        least_scored_share=recipe.checkpointing.least_scored_share,
                        seed=recipe.seed,
                        count=count,
                        advice=advice,
                        staleness=recipe.compute.staleness,
                    )
                    for stage in recipe.reinforcements
                ]
                trainer = Trainer(
                    team.weights,
                    stages,
                    folder,
                    recipe.checkpointing,
                    make_learner=learner_on(compute),
                    state=class_counts,
                    validation=_make_validation(recipe, data, sampler, count),
                    sampler=sampler,
                    meter=meter,
                    wandb=wandb,
                    copy=copy,
                )
                await trainer.train(report)
            _require_gain(recipe, folder, len(prompts))
            return replace(team, best=trainer.restore_best()), len(prompts)


class _RunData(NamedTuple):
    """What a run learns from."""

    settings: DataSettings
    """The recipe's, with memories as files."""
    prompts: list[Prompt]
    demonstrations: list[Demonstration]
    solutions: list[SolvedQuestion]


def _read_data(recipe: Recipe, folder: Path, run: RunDirectory | None) -> _RunData:
    """Read what a run learns from; the first rank, which has `run`, writes or checks whose it is.

    Raises:
        RecipeError: the run was begun with another recipe or other data.
        InputError: the data is missing or damaged.
    """
    if run is not None:
        write_recipe(run, recipe)
    data = keep_remembered(recipe.data, folder)
    demonstrations, solutions = training_demonstrations(data), training_solutions(data)
    prompts = rollout_prompts(recipe, data, demonstrations)
    if run is not None and not reads_what_grows(data):
        kinds: dict[str, Sequence[object]] = {
            "data.prompts": prompts,
            "data.demonstrations": demonstrations,
            "data.solutions": solutions,
        }
        write_data(run, kinds)
    return _RunData(data, prompts, demonstrations, solutions)


@contextmanager
def open_copy(recipe: Recipe, folder: Path) -> Iterator[RunCopy | None]:
    """Yield the copy of a run, from which an empty folder was filled; None without one.

    Raises:
        RecipeError: it cannot be read or written to, or is of another run.
    """
    url = recipe.checkpointing.copies
    if url is None:
        yield None
        return
    copy = RunCopy(url, folder)
    place = without_credentials(url)
    copy.fetch(lambda read: require_same(recipe, place, read, "checkpointing.copies"))
    yield copy
    copy.keep_files()  # what came after the last checkpoint


async def train_and_export(
    recipe: Recipe,
    folder: Path,
    report: Report,
    export: Path | None,
    *,
    digests: bool,
    open_sampler: OpenSampler = open_ranks_or_servers,
) -> Trained:
    """Train as one rank, or alone, and export; see `train` and `export_agents`.

    Args:
        recipe: names everything.
        folder: the run directory.
        report: called after every step.
        export: folder of the export; None writes none.
        digests: of the weights are returned too.
        open_sampler: opens what samples.
    """
    team, prompts = await _train_team(recipe, folder, report, _OwnParts(), open_sampler)
    if export is not None:
        export_agents(team, export)
    weights = weights_of(team) if digests else {}
    return Trained(weights=weights, prompts=prompts, best=team.best)


def plan_training(
    recipe: Recipe, compute: Compute | None = None, count: int | None = None
) -> RunPlan:
    """Work out what the recipe would do, without loading a weight.

    Args:
        recipe: of the run.
        compute: of another machine; None is what the recipe says on this one.
        count: processes that learn; None is what the recipe or torchrun says.

    Raises:
        WaltzError: the data is missing or damaged, or the device is not there.
    """
    demonstrations = training_demonstrations(recipe.data)
    prompts = rollout_prompts(recipe, recipe.data, demonstrations)
    wording = load_wording(recipe.agents.wording)
    lengths = [sum(len(message.content) for message in prompt.messages) for prompt in prompts]
    instructions = len(wording.feedback_system) + len(wording.review)
    data = DataSize(
        prompt_tokens=tuple(length // CHARACTERS_PER_TOKEN for length in lengths),
        instruction_tokens=instructions // CHARACTERS_PER_TOKEN,
        demonstrations=len(demonstrations),
        solutions=len(training_solutions(recipe.data)),
    )
    # Rewards and checks of the user's are imported here, so that a wrong name is noticed now.
    for stage in recipe.reinforcements:
        find_reward(stage.reward)
    if recipe.attacker is not None:
        find_check(recipe.attacker.check)
    if count is None:
        on_ray = recipe.compute.engine == "ray"
        count = recipe.compute.ray.learners if on_ray else ranks.count_started()
    require_shares(recipe, count)
    compute = compute or resolve_compute(recipe.compute)
    plan = plan_run(recipe.models, recipe.agents, recipe.stages, compute, data, count)
    if recipe.attacker is None:
        return plan
    return plan_attacker(plan, recipe.attacker, recipe.stages, compute.dtype)


def open_run(folder: Path) -> Team:
    """Restore a run's roles from its best validated checkpoint, or else from its newest.

    Raises:
        InputError: the folder holds no run, or no whole checkpoint.
    """
    recipe = read_run_recipe(folder)
    team, warmed_up = open_team(recipe, folder, resolve_compute(recipe.compute))
    # A run of imitation alone trains the base; there are no later checkpoints of the roles.
    if warmed_up and recipe.imitations and not recipe.reinforcements:
        return team
    trainer = Trainer(team.weights, [], folder, recipe.checkpointing)
    if not (warmed_up and trainer.restore()):
        raise CheckpointError(f"{folder} has no whole checkpoint; train on, or choose another run")
    return replace(team, best=trainer.restore_best())


def open_team(recipe: Recipe, folder: Path, compute: Compute) -> tuple[Team, bool]:
    """Make a run's roles as they start, and return whether its warm-up, if any, has a checkpoint.

    Raises:
        InputError: the base is not there.
    """
    warmed_up = True
    if recipe.models.pair is not None:
        team = continue_roles(recipe.models, recipe.agents, compute)
    else:
        warm_up = WarmUp(recipe=recipe, folder=folder, compute=compute)
        base = warm_up.open_base()
        if recipe.imitations:
            base, warmed_up = warm_up.restore(base)
        team = make_roles(recipe.models, recipe.agents, base, compute, recipe.seed)
    if recipe.attacker is not None:
        team = add_attacker(team, recipe.attacker, compute)
    return team, warmed_up


def export_agents(team: Team, folder: Path) -> None:
    """Write every agent as a plain model, and as an adapter if it is one; see `export_roles`.

    The manifest says how long the agents' turns may be, which validated step the weights are of,
    and what a dequantised base is.

    Raises:
        InputError: the folder holds something else, or is not writable.
    """
    limits = {name: role.agent.sampling.max_new_tokens for name, role in team.roles.items()}
    facts: dict[str, Json] = {LIMITS: limits}
    if team.best is not None:
        facts["validation"] = team.best._asdict()
    model = next(iter(team.weights.values())).causal_lm.model
    if (title := getattr(model.config, BASE_TITLE, None)) is not None:
        facts["base"] = title
    export_roles(role_states(team.weights, {}), folder, team.feedback.wording, facts)


def join_ranks(recipe: Recipe) -> AbstractContextManager[None]:
    """Join the ranks that torchrun, or Ray, started; see `ranks.join_ranks`.

    Raises:
        RecipeError: they cannot share the prompts of a step evenly.
    """
    require_shares(recipe, ranks.count_started())
    return ranks.join_ranks(resolve_compute(recipe.compute).device)


def weights_of(team: Team) -> dict[str, str]:
    """Return a SHA-256 over each role's model; equal only if all its weights are."""
    return {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}


def require_shares(recipe: Recipe, count: int) -> None:
    """Check that each of `count` processes can roll out as many prompts of a step.

    Raises:
        RecipeError: they cannot, or there is a teacher, which one process trains.
    """
    if recipe.teacher is not None and count > 1:
        raise RecipeError(
            f"stage {recipe.teacher.name!r}: a teacher is trained by one process, got {count}; run"
            " it without torchrun, or with compute.ray.learners = 1"
        )
    if recipe.compute.servers or recipe.compute.rollout_workers:  # they sample for all
        return
    sizes = [stage.prompts_per_step for stage in recipe.reinforcements]
    if any(size % count for size in sizes):
        common = math.gcd(*sizes)
        fitting = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise RecipeError(
            f"{count} processes cannot share prompts_per_step {' and '.join(map(str, sizes))}"
            f" evenly; start {' or '.join(fitting)} processes, or make it a multiple of {count}"
        )


def _with_reward(recipe: Recipe, reward: FeedbackReward) -> Recipe:
    """Name a function of the caller's as the reward of every stage that has one."""
    name = _name_function(reward)
    stages = (
        replace(stage, reward=name) if isinstance(stage, ReinforcementStage) else stage
        for stage in recipe.stages
    )
    return replace(recipe, stages=tuple(stages))


def _name_function(function: FeedbackReward | KeepsGoal) -> str:
    """Return the name of a function, or of the class of what can be called."""
    qualified = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{function.__module__}:{qualified}"


def _require_gain(recipe: Recipe, folder: Path, prompts: int) -> None:
    """Check that the last stage raised the reward as much as the recipe asks for.

    Raises:
        TargetError: it did not.
    """
    target, stage = recipe.targets.reward_gain, recipe.validated_stage
    if target is None or stage is None:
        return
    total = sum(each.total_steps(prompts) for each in recipe.reinforcements)
    # Stages behind it have no steps, so its steps are the last ones.
    first = total - stage.total_steps(prompts)

    def find_missed() -> str:
        lines = [line for line in read_metrics(folder) if line["step"] >= first]
        return missed_gain(lines, stage.learns, target)

    if missed := ranks.ask_first(find_missed):
        raise TargetError(
            f"{missed}: nothing was exported; waltzrl export {folder} FOLDER exports it all the "
            "same"
        )


def _make_validation(
    recipe: Recipe, data: DataSettings, sampler: Sampler, count: Count | None
) -> Validation | None:
    """Make what measures the agents as the last stage leaves them."""
    prompts, last = validation_prompts(data), recipe.validated_stage
    if not prompts or last is None:
        return None
    return Validation(
        prompts=prompts,
        sampler=sampler,
        max_rounds=last.limit_rounds(recipe.agents.max_rounds),
        least_scored_share=recipe.checkpointing.least_scored_share,
        count=count,
    )
