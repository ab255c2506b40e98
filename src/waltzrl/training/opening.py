"""The composition root of training: a recipe becomes agents, stages and a trainer."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from waltzrl.agents import FeedbackAgent, load_wording
from waltzrl.agents.exports import LIMITS
from waltzrl.collaboration import collaborate, draft_only
from waltzrl.errors import CheckpointError, MissingExtraError, RecipeError
from waltzrl.evaluation.data.solutions import CLOSING, OPENING
from waltzrl.evaluation.judges import Judge
from waltzrl.evaluation.judges.opening import open_judge
from waltzrl.foundation.files import Json
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.policies.compute import Compute, resolve_compute
from waltzrl.records import CHARACTERS_PER_TOKEN, Prompt
from waltzrl.training.data import (
    keep_remembered,
    rollout_prompts,
    training_demonstrations,
    training_solutions,
    validation_prompts,
)
from waltzrl.training.judging import RunJudge
from waltzrl.training.recipe import DataSettings, Recipe
from waltzrl.training.rewards import ClassFrequencies, NamedReward, find_reward
from waltzrl.training.run_recipe import BASE, read_run_recipe, write_recipe
from waltzrl.training.settings import ReinforcementStage

try:
    from waltzrl.policies.weights import BASE_TITLE, CausalLM
    from waltzrl.training import ranks
    from waltzrl.training.checkpoints import export_roles, weights_digest
    from waltzrl.training.costs import count_of, open_meter
    from waltzrl.training.fitting import require_context
    from waltzrl.training.learner import learner_on
    from waltzrl.training.models import continue_roles, make_roles, open_base
    from waltzrl.training.plan import DataSize, RunPlan, plan_run
    from waltzrl.training.reinforce import reinforce
    from waltzrl.training.roles import Team
    from waltzrl.training.rollouts import (
        BoundPattern,
        Count,
        TakeSamples,
        conversation_samples,
        feedback_samples,
    )
    from waltzrl.training.samplers import OpenSamplers, Samplers, open_samplers
    from waltzrl.training.stages import Reinforcement
    from waltzrl.training.teaching import EXPLAIN
    from waltzrl.training.trainer import Progress, Trainer, role_states
    from waltzrl.training.validation import VALIDATION, Best, Validation
    from waltzrl.training.warm_up import WarmUp, require_one_process
except ModuleNotFoundError as missing:
    raise MissingExtraError("training", "PyTorch", "train") from missing

Report = Callable[[Progress], None]


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
    samplers: OpenSamplers | None = None,
    own_reward: NamedReward | None = None,
) -> Team:
    """Train what the recipe says in `folder`, continuing where an earlier call was interrupted.

    Args:
        recipe: names everything but `own_judge`.
        folder: the run directory.
        report: called after every step.
        own_judge: scores the replies in place of the recipe's judge. The run's recipe holds its
            name, so that a run is not continued with another one.
        samplers: roll out in place of what the recipe names.
        own_reward: of the feedback agent, in place of what the stages name. The run's recipe holds
            its name.

    Raises:
        WaltzError: the data, the base, a reward or the folder is unfit, or training diverged.
    """
    team, _ = await _train_team(recipe, folder, report, own_judge, samplers, own_reward)
    return team


async def _train_team(
    recipe: Recipe,
    folder: Path,
    report: Report,
    own_judge: Judge | None,
    samplers: OpenSamplers | None,
    own_reward: NamedReward | None = None,
) -> tuple[Team, int]:
    """Train, and return the team and how many prompts there are; see `train`."""
    if own_judge is not None:
        recipe = replace(recipe, judge=own_judge.name)
    if own_reward is not None:
        recipe = _with_reward(recipe, own_reward)
    compute = resolve_compute(recipe.compute)
    named = {
        stage.reward: own_reward or find_reward(stage.reward) for stage in recipe.reinforcements
    }
    opening = open_judge(recipe.judge, judges_prompts=recipe.judge_prompts, cached=True)
    async with nullcontext(own_judge) if own_judge else opening as judge:
        with (
            RunDirectory(folder) if ranks.is_first() else nullcontext() as run,
            open_meter(recipe, folder, compute.device) as meter,
        ):
            with ranks.first_before_others():  # what the first writes, the others read
                if run is not None:
                    write_recipe(run, recipe)
                judge = RunJudge(judge, folder)
                data = keep_remembered(recipe.data, folder)
                prompts = rollout_prompts(recipe, data)
                warm_up = WarmUp(
                    recipe=recipe,
                    folder=folder,
                    compute=compute,
                    demonstrations=training_demonstrations(data),
                    solutions=training_solutions(data),
                    meter=meter,
                )
                if recipe.models.pair is None:
                    base = _open_base(warm_up, prompts)
            if recipe.models.pair is not None:
                team = continue_roles(recipe.models, recipe.agents, compute)
            else:
                base = await warm_up.run(base, partial(_open_base, warm_up, prompts), report)
                team = make_roles(recipe.models, recipe.agents, base, compute, recipe.seed)
                if not recipe.reinforcements:
                    return team, 0
            require_context(team, prompts, recipe.agents.max_rounds)
            state: dict[str, float] = {}
            frequencies = ClassFrequencies(state)
            count = count_of(recipe, meter)
            own_samplers = partial(open_samplers, recipe)
            async with (samplers or own_samplers)(team, folder) as sampling:
                stages = []
                for stage in recipe.reinforcements:
                    reward = partial(named[stage.reward], coefficients=stage.coefficients)
                    samples: Mapping[str, TakeSamples] = {
                        "conversation": conversation_samples,
                        "feedback": partial(
                            feedback_samples, reward=reward, frequencies=frequencies
                        ),
                    }
                    bound = _make_reinforcement(recipe, stage, sampling, prompts, judge, samples)
                    stages.append(replace(bound, count=count))
                trainer = Trainer(
                    team.weights,
                    stages,
                    folder,
                    recipe.checkpointing,
                    make_learner=learner_on(compute),
                    state=state,
                    validate=_make_validation(recipe, data, sampling, judge, count),
                    publish=sampling.publish,
                    meter=meter,
                )
                await trainer.train(report)
            return replace(team, best=trainer.restore_best()), len(prompts)


async def train_and_export(
    recipe: Recipe,
    folder: Path,
    report: Report,
    export: Path | None,
    *,
    digests: bool,
    samplers: OpenSamplers | None = None,
) -> Trained:
    """Train as one rank, or alone, and export; see `train` and `export_agents`.

    Args:
        recipe: names everything.
        folder: the run directory.
        report: called after every step.
        export: folder of the export; None writes none.
        digests: of the weights are returned too.
        samplers: see `train`.
    """
    team, prompts = await _train_team(recipe, folder, report, None, samplers)
    if export is not None:
        export_agents(team, export)
    weights = weights_of(team) if digests else {}
    return Trained(weights=weights, prompts=prompts, best=team.best)


def plan_training(recipe: Recipe) -> RunPlan:
    """Work out what the recipe would do, without loading a weight.

    Raises:
        WaltzError: the data is missing or damaged, or the device is not there.
    """
    prompts = rollout_prompts(recipe, recipe.data)
    wording = load_wording(recipe.agents.wording)
    lengths = [sum(len(message.content) for message in prompt.messages) for prompt in prompts]
    instructions = len(wording.feedback_system) + len(wording.review)
    data = DataSize(
        prompt_tokens=tuple(length // CHARACTERS_PER_TOKEN for length in lengths),
        instruction_tokens=instructions // CHARACTERS_PER_TOKEN,
        demonstrations=len(training_demonstrations(recipe.data)),
        solutions=len(training_solutions(recipe.data)),
    )
    compute = resolve_compute(recipe.compute)
    on_ray = recipe.compute.engine == "ray"
    for stage in recipe.reinforcements:
        find_reward(stage.reward)
    count = recipe.compute.ray.learners if on_ray else ranks.count_started()
    require_shares(recipe, count)
    return plan_run(recipe.models, recipe.agents, recipe.stages, compute, data, count)


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
    if recipe.models.pair is not None:
        return continue_roles(recipe.models, recipe.agents, compute), True
    warm_up = WarmUp(recipe=recipe, folder=folder, compute=compute)
    base, warmed_up = _open_base(warm_up), True
    if recipe.imitations:
        base, warmed_up = warm_up.restore(base)
    return make_roles(recipe.models, recipe.agents, base, compute, recipe.seed), warmed_up


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
    require_one_process(recipe, count)
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


def _open_base(warm_up: WarmUp, prompts: Sequence[Prompt] = ()) -> CausalLM:
    recipe = warm_up.recipe
    created, texts = warm_up.folder / BASE, _yield_texts(warm_up, prompts)
    return open_base(recipe.models, created, texts, warm_up.compute, recipe.seed)


def _yield_texts(warm_up: WarmUp, prompts: Sequence[Prompt]) -> Iterator[str]:
    """Yield every text whose words a tokenizer created for this run should know."""
    wording = load_wording(warm_up.recipe.agents.wording)
    yield from (wording.conversation_system, wording.feedback_system, wording.review)
    yield wording.revise
    if warm_up.recipe.teacher is not None or warm_up.solutions:
        yield from (EXPLAIN, OPENING, CLOSING)
    for row in warm_up.solutions:
        yield from (row.question, row.solution, row.reasoning_trace)
    collaborations = [demonstration.collaboration for demonstration in warm_up.demonstrations]
    for prompt in (*prompts, *(collaboration.prompt for collaboration in collaborations)):
        yield from (message.content for message in prompt.messages)
    for collaboration in collaborations:
        yield from (reply.text for reply in collaboration.replies)
        for turn in collaboration.rounds:
            yield from (turn.feedback.text, turn.feedback.reasoning)


def _with_reward(recipe: Recipe, reward: NamedReward) -> Recipe:
    """Name a function of the caller's as the reward of every stage that has one."""
    name = f"{reward.__module__}:{getattr(reward, '__qualname__', type(reward).__qualname__)}"
    stages = (
        replace(stage, reward=name) if isinstance(stage, ReinforcementStage) else stage
        for stage in recipe.stages
    )
    return replace(recipe, stages=tuple(stages))


def _make_reinforcement(
    recipe: Recipe,
    stage: ReinforcementStage,
    samplers: Samplers,
    prompts: Sequence[Prompt],
    judge: Judge,
    samples: Mapping[str, TakeSamples],
) -> Reinforcement:
    """Bind the functions that a stage of the recipe names.

    Args:
        recipe: of the run.
        stage: one of its stages.
        samplers: roll out.
        prompts: to roll out.
        judge: labels every reply.
        samples: role -> what it learns from the rollouts of a step.
    """
    return Reinforcement(
        settings=stage,
        team=samplers.team,
        prompts=prompts,
        judge=judge,
        pattern=bound_pattern(recipe, stage, samplers.team.feedback),
        samples={role: samples[role] for role in stage.learns},
        algorithm=partial(reinforce, settings=stage.algorithm),
        least_scored_share=recipe.checkpointing.least_scored_share,
        seed=recipe.seed,
        spread=samplers.spread(stage.name),
        staleness=recipe.compute.staleness,
    )


def _make_validation(
    recipe: Recipe, data: DataSettings, samplers: Samplers, judge: Judge, count: Count | None
) -> Validation | None:
    """Make what measures the agents as the last stage leaves them: in its pattern, greedily."""
    prompts, last = validation_prompts(data), recipe.validated_stage
    if not prompts or last is None:
        return None
    greedy = samplers.team.greedy()
    return Validation(
        prompts=prompts,
        drafter=greedy.conversation,
        pattern=bound_pattern(recipe, last, greedy.feedback),
        judge=judge,
        least_scored_share=recipe.checkpointing.least_scored_share,
        spread=samplers.spread(VALIDATION),
        count=count,
    )


def bound_pattern(
    recipe: Recipe, stage: ReinforcementStage, reviewer: FeedbackAgent
) -> BoundPattern:
    """Return how the agents of a stage collaborate."""
    if stage.pattern == "draft-only":
        return partial(draft_only, reviewer=reviewer)
    return partial(collaborate, reviewer=reviewer, max_rounds=recipe.agents.max_rounds)
