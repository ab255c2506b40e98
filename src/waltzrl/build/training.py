"""The composition root of training: a recipe becomes agents, stages and a trainer."""

import json
import math
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.build.datasets import (
    forget_remembered,
    keep_remembered,
    rollout_prompts,
    training_demonstrations,
    validation_prompts,
)
from waltzrl.build.judges import open_judge
from waltzrl.collaboration import collaborate, draft_only
from waltzrl.config.training import DataSettings, Recipe, recipe_json
from waltzrl.config.validation import validated
from waltzrl.errors import CheckpointError, MissingExtraError, RecipeError
from waltzrl.judges import Judge
from waltzrl.policies import Sampling
from waltzrl.policies.compute import Compute, resolve_compute
from waltzrl.records import Demonstration, Prompt
from waltzrl.telemetry import RunDirectory
from waltzrl.telemetry.files import Json
from waltzrl.training.judging import RunJudge, forget_answers
from waltzrl.training.rewards import REWARDS, ClassFrequencies
from waltzrl.training.settings import ROLES, ReinforcementStage

try:
    from waltzrl.policies.local import LocalPolicy
    from waltzrl.policies.vllm import VllmServers
    from waltzrl.policies.weights import BASE_TITLE, CausalLM, Weights
    from waltzrl.training import ranks
    from waltzrl.training.checkpoints import export_roles, weights_digest
    from waltzrl.training.learner import Learner
    from waltzrl.training.models import continue_roles, make_roles, open_base, open_warm_up
    from waltzrl.training.plan import DataSize, RunPlan, plan_run
    from waltzrl.training.reinforce import reinforce
    from waltzrl.training.roles import Team
    from waltzrl.training.rollouts import (
        BoundPattern,
        Share,
        TakeSamples,
        conversation_samples,
        feedback_samples,
    )
    from waltzrl.training.samples import demonstration_sample
    from waltzrl.training.sharding import sharded
    from waltzrl.training.stages import Imitation, Reinforcement
    from waltzrl.training.trainer import Progress, Trainer, role_states
    from waltzrl.training.validation import Validation
except ModuleNotFoundError as missing:
    raise MissingExtraError("training", "PyTorch", "train") from missing

RECIPE, WORDING = "recipe.json", "wording.json"
BASE = "base"
"""Folder inside a run of a base that was made from scratch."""
WARM_UP = "warm-up"
"""Folder of the warm-up inside a run; it has steps and checkpoints of its own."""

PUBLISHED = "published"
"""Folder inside a run, while it lasts, of the adapters that vLLM servers load."""

CHARACTERS_PER_TOKEN = 4
"""Of English in the vocabularies of large models, about; for plans only."""

Report = Callable[[Progress], None]


async def train(
    recipe: Recipe, folder: Path, report: Report, own_judge: Judge | None = None
) -> Team:
    """Train what the recipe says in `folder`, continuing where an earlier call was interrupted.

    Args:
        recipe: names everything but `own_judge`.
        folder: the run directory.
        report: called after every step.
        own_judge: scores the replies in place of the recipe's judge. The run's recipe holds its
            name, so that a run is not continued with another one.

    Raises:
        WaltzError: the data, the base or the folder is unfit, or training diverged.
    """
    if own_judge is not None:
        recipe = replace(recipe, judge=own_judge.name)
    compute = resolve_compute(recipe.compute)
    opening = open_judge(recipe.judge, judges_prompts=recipe.judge_prompts, cached=True)
    async with nullcontext(own_judge) if own_judge else opening as judge:
        with RunDirectory(folder) if ranks.is_first() else nullcontext() as run:
            with ranks.first_before_others():  # what the first writes, the others read
                if run is not None:
                    _write_recipe(run, recipe)
                judge = RunJudge(judge, folder)
                data = keep_remembered(recipe.data, folder)
                prompts = rollout_prompts(recipe, data)
                demonstrations = training_demonstrations(data)
                if recipe.models.pair is None:
                    base = _open_base(recipe, folder, compute, prompts, demonstrations)
            if recipe.models.pair is not None:
                team = continue_roles(recipe.models, recipe.agents, compute)
            else:
                if recipe.imitations:
                    base = await _taught(recipe, base, folder, compute, demonstrations, report)
                team = make_roles(recipe.models, recipe.agents, base, compute, recipe.seed)
                if not recipe.reinforcements:
                    return team
            state: dict[str, float] = {}
            frequencies = ClassFrequencies(state)
            async with _sampling(recipe, team, folder) as (sampled, publish):
                stages = [
                    _reinforcement(recipe, stage, sampled, prompts, judge, frequencies)
                    for stage in recipe.reinforcements
                ]
                trainer = Trainer(
                    team.weights,
                    stages,
                    folder,
                    recipe.checkpointing,
                    make_learner=_learner(recipe, compute),
                    state=state,
                    validate=_validation(recipe, data, sampled, judge),
                    publish=publish,
                )
                await trainer.train(report)
            return replace(team, best=trainer.restore_best())


def plan_training(recipe: Recipe) -> RunPlan:
    """Work out what the recipe would do, without loading a weight.

    Raises:
        WaltzError: the data is missing or damaged, or the device is not there.
    """
    prompts = rollout_prompts(recipe, recipe.data)
    wording = load_wording(recipe.agents.wording)
    longest = max((sum(len(m.content) for m in p.messages) for p in prompts), default=0)
    instructions = len(wording.feedback_system) + len(wording.review)
    data = DataSize(
        prompts=len(prompts),
        prompt_tokens=(longest + instructions) // CHARACTERS_PER_TOKEN,
        demonstrations=len(training_demonstrations(recipe.data)),
    )
    compute = resolve_compute(recipe.compute)
    count = ranks.started()
    _require_shares(recipe, count)
    return plan_run(recipe.models, recipe.agents, recipe.stages, compute, data, count)


def open_run(folder: Path) -> Team:
    """Restore a run's roles from its best validated checkpoint, or else from its newest.

    Raises:
        InputError: the folder holds no run, or no whole checkpoint.
    """
    recipe = read_run_recipe(folder)
    compute = resolve_compute(recipe.compute)
    warmed_up = True
    if recipe.models.pair is not None:
        team = continue_roles(recipe.models, recipe.agents, compute)
    else:
        base = _open_base(recipe, folder, compute)
        if recipe.imitations:
            weights = open_warm_up(recipe.models, base, compute, recipe.seed)
            warmed_up = _warm_up(recipe, weights, folder, compute, []).restore() > 0
            base = _warmed_up(weights)
        team = make_roles(recipe.models, recipe.agents, base, compute, recipe.seed)
        if warmed_up and recipe.imitations and not recipe.reinforcements:
            return team
    trainer = Trainer(team.weights, [], folder, recipe.checkpointing)
    if not (warmed_up and trainer.restore()):
        raise CheckpointError(f"{folder} has no whole checkpoint; train on, or choose another run")
    return replace(team, best=trainer.restore_best())


def export_agents(team: Team, folder: Path) -> None:
    """Write every agent as a plain model, and as an adapter if it is one; see `export_roles`.

    The manifest says which validated step the weights are of, and what a dequantised base is.

    Raises:
        InputError: the folder holds something else, or is not writable.
    """
    facts: dict[str, Json] = {} if team.best is None else {"validation": team.best._asdict()}
    model = next(iter(team.weights.values())).causal_lm.model
    if (title := getattr(model.config, BASE_TITLE, None)) is not None:
        facts["base"] = title
    export_roles(role_states(team.weights, {}), folder, facts)


def joined_ranks(recipe: Recipe) -> AbstractContextManager[None]:
    """Join the ranks that torchrun started; see `ranks.joined`.

    Raises:
        RecipeError: they cannot share the prompts of a step evenly.
    """
    _require_shares(recipe, ranks.started())
    return ranks.joined(resolve_compute(recipe.compute).device)


def weights_of(team: Team) -> dict[str, str]:
    """Return a SHA-256 over each role's model; equal only if all its weights are."""
    return {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}


def read_run_recipe(folder: Path) -> Recipe:
    """Read the recipe that a run was started with.

    Raises:
        RecipeError: there is none, or it is damaged.
    """
    path = folder / RECIPE
    try:
        table = _read_json(path)
    except OSError:
        raise RecipeError(f"{folder} is no training run: it has no {RECIPE}") from None
    return validated(Recipe, table, str(path))


def _require_shares(recipe: Recipe, count: int) -> None:
    """Check that each of `count` processes can roll out as many prompts of a step.

    Raises:
        RecipeError: they cannot.
    """
    if recipe.compute.servers:  # of which the first process asks for all
        return
    sizes = [stage.prompts_per_step for stage in recipe.reinforcements]
    if any(size % count for size in sizes):
        common = math.gcd(*sizes)
        fitting = [str(n) for n in range(1, common + 1) if common % n == 0]
        raise RecipeError(
            f"{count} processes cannot share prompts_per_step {' and '.join(map(str, sizes))}"
            f" evenly; start {' or '.join(fitting)} processes, or make it a multiple of {count}"
        )


def _write_recipe(run: RunDirectory, recipe: Recipe) -> None:
    """Write recipe and prompts into the run, or check that its checkpoints are of the same ones.

    What samples the rollouts may be another: servers go, and policies are the same on all.
    """
    resolved: dict[str, Json] = recipe_json(recipe)
    wording: dict[str, Json] = asdict(load_wording(recipe.agents.wording))
    if any(run.path.glob("**/checkpoints/step-*")):
        begun = read_run_recipe(run.path)
        same = replace(begun, compute=replace(begun.compute, rollouts=recipe.compute.rollouts))
        _require_same(run.path, "recipe", resolved, recipe_json(same))
        if (run.path / WORDING).exists():  # version 0.1 wrote none
            _require_same(run.path, "wording", wording, _read_json(run.path / WORDING))
        return
    # Nothing was learnt yet: what the run made or kept may be of another recipe.
    shutil.rmtree(run.path / BASE, ignore_errors=True)
    forget_remembered(run.path)
    forget_answers(run.path)
    run.write_json(WORDING, wording)
    run.write_json(RECIPE, resolved)


def _require_same(
    folder: Path, what: str, now: Mapping[str, object], before: Mapping[str, object]
) -> None:
    if differing := [key for key, value in now.items() if before.get(key) != value]:
        raise RecipeError(
            f"{folder} was begun with another {what} (other {', '.join(differing)}); "
            f"choose another run directory, or go back to that {what}"
        )


def _read_json(path: Path) -> dict[str, object]:
    try:
        value: dict[str, object] = json.loads(path.read_bytes())
    except ValueError as error:
        raise RecipeError(f"{path}: damaged: {error}") from None
    return value


def _open_base(
    recipe: Recipe,
    folder: Path,
    compute: Compute,
    prompts: Sequence[Prompt] = (),
    demonstrations: Sequence[Demonstration] = (),
) -> CausalLM:
    texts = _texts(recipe, prompts, demonstrations)
    return open_base(recipe.models, folder / BASE, texts, compute, recipe.seed)


def _texts(
    recipe: Recipe, prompts: Sequence[Prompt], demonstrations: Sequence[Demonstration]
) -> Iterator[str]:
    """Yield every text whose words a tokenizer created for this run should know."""
    wording = load_wording(recipe.agents.wording)
    yield from (wording.conversation_system, wording.feedback_system, wording.review)
    yield wording.revise
    collaborations = [demonstration.collaboration for demonstration in demonstrations]
    for prompt in (*prompts, *(collaboration.prompt for collaboration in collaborations)):
        yield from (message.content for message in prompt.messages)
    for collaboration in collaborations:
        yield from (reply.text for reply in collaboration.replies)
        for turn in collaboration.rounds:
            yield from (turn.feedback.text, turn.feedback.reasoning)


async def _taught(
    recipe: Recipe,
    base: CausalLM,
    folder: Path,
    compute: Compute,
    demonstrations: Sequence[Demonstration],
    report: Report,
) -> CausalLM:
    """Run the warm-up, and return what the roles start from."""
    weights = open_warm_up(recipe.models, base, compute, recipe.seed)
    learning = sharded({ROLES[0]: weights}, None)[ROLES[0]]
    await _warm_up(recipe, learning, folder, compute, demonstrations).train(report)
    if learning is not weights:  # its parts stay parts; the last checkpoint has it whole
        base = _open_base(recipe, folder, compute)
        weights = open_warm_up(recipe.models, base, compute, recipe.seed)
        _warm_up(recipe, weights, folder, compute, []).restore()
    return _warmed_up(weights)


def _warmed_up(weights: Weights) -> CausalLM:
    """Return what the roles start from, without the place of a base that is another now."""
    learned = weights.causal_lm
    return learned if weights.adapter is not None else replace(learned, source=None)


def _warm_up(
    recipe: Recipe,
    weights: Weights,
    folder: Path,
    compute: Compute,
    demonstrations: Sequence[Demonstration],
) -> Trainer:
    """Make the trainer that teaches one model, or one adapter, both roles by example."""
    wording = load_wording(recipe.agents.wording)
    sampling = Sampling(max_new_tokens=recipe.agents.max_new_tokens)
    policy = LocalPolicy(weights.causal_lm.model, weights.causal_lm.tokenizer, weights.adapter)
    to_sample = partial(
        demonstration_sample,
        conversation=ConversationAgent(policy, wording, sampling),
        feedback=FeedbackAgent(policy, wording, sampling),
    )
    stages = [
        Imitation(
            settings=stage, demonstrations=demonstrations, to_sample=to_sample, seed=recipe.seed
        )
        for stage in recipe.imitations
    ]
    inside = folder / WARM_UP
    inside.mkdir(exist_ok=True)
    return Trainer(
        {"conversation": weights},
        stages,
        inside,
        recipe.checkpointing,
        make_learner=_learner(recipe, compute),
    )


@asynccontextmanager
async def _sampling(
    recipe: Recipe, team: Team, folder: Path
) -> AsyncIterator[tuple[Team, Callable[[int, Sequence[str]], Awaitable[None]] | None]]:
    """Yield the team that rolls out, and what publishes its weights where servers sample.

    Only the first rank asks servers and publishes; it does the rollouts of all.
    """
    if not (recipe.compute.servers and ranks.is_first()):
        yield team, None
        return
    base = team.weights["conversation"].causal_lm
    async with VllmServers(recipe.compute.servers, base, folder / PUBLISHED) as servers:
        yield team.sampled_by(servers.policy), servers.publish


def _learner(recipe: Recipe, compute: Compute) -> partial[Learner]:
    return partial(
        Learner,
        dtype=compute.dtype,
        checkpoint_activations=compute.checkpoint_activations,
    )


def _reinforcement(
    recipe: Recipe,
    stage: ReinforcementStage,
    team: Team,
    prompts: Sequence[Prompt],
    judge: Judge,
    frequencies: ClassFrequencies,
) -> Reinforcement:
    """Bind the functions that a stage of the recipe names."""
    reward = partial(REWARDS[stage.reward], coefficients=stage.coefficients)
    samples: dict[str, TakeSamples] = {
        "conversation": conversation_samples,
        "feedback": partial(feedback_samples, reward=reward, frequencies=frequencies),
    }
    return Reinforcement(
        settings=stage,
        team=team,
        prompts=prompts,
        judge=judge,
        pattern=_pattern(recipe, stage, team.feedback),
        samples={role: samples[role] for role in stage.learns},
        algorithm=partial(reinforce, settings=stage.algorithm),
        least_scored_share=recipe.checkpointing.least_scored_share,
        seed=recipe.seed,
        share=_share(recipe),
    )


def _share(recipe: Recipe) -> Share:
    """Return which prompts a rank rolls out; servers sample for the first rank alone."""
    return ranks.all_to_first if recipe.compute.servers else ranks.share


def _validation(recipe: Recipe, data: DataSettings, team: Team, judge: Judge) -> Validation | None:
    """Make what measures the agents as the last stage leaves them: in its pattern, greedily."""
    prompts = validation_prompts(data)
    if not prompts or not recipe.reinforcements:
        return None
    greedy = team.greedy()
    return Validation(
        prompts=prompts,
        drafter=greedy.conversation,
        pattern=_pattern(recipe, recipe.reinforcements[-1], greedy.feedback),
        judge=judge,
        least_scored_share=recipe.checkpointing.least_scored_share,
        share=_share(recipe),
    )


def _pattern(recipe: Recipe, stage: ReinforcementStage, reviewer: FeedbackAgent) -> BoundPattern:
    if stage.pattern == "draft-only":
        return partial(draft_only, reviewer=reviewer)
    return partial(collaborate, reviewer=reviewer, max_rounds=recipe.agents.max_rounds)
