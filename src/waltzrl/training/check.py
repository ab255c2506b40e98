"""What a recipe needs against what a machine has, before hours of it are paid for."""

import re
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import aiohttp
import torch

from waltzrl.errors import InputError, RecipeError, WaltzError, missing_extra
from waltzrl.evaluation.data.importers.sets import find_set
from waltzrl.evaluation.data.opening import read_set, read_sets
from waltzrl.policies.compute import STARTED, Compute, measure_free_memory
from waltzrl.training.copies import RunCopy
from waltzrl.training.data import training_demonstrations, validation_prompts
from waltzrl.training.judging import require_judge
from waltzrl.training.opening import plan_training
from waltzrl.training.plan import RunPlan
from waltzrl.training.recipe import DataSettings, Recipe, find_wandb_project

State = Literal["ready", "not ready", "unknown"]

GPU_ALLOWANCE = 1.22
"""Bytes that a GPU needs for each that is planned: 1.16 and 1.22 were measured (docs/scale.md)."""
GPU_SHARE = 0.98
"""Of a GPU's memory, what we count on; not measured."""
LOADED_BYTES = 4
"""Bytes per parameter of a base in CPU memory while it loads: of each rank that has it whole, or of
the file, which all ranks share that read their parts from it."""
PATIENCE = aiohttp.ClientTimeout(total=10)
STAND_IN = "generator:train"
"""The set by whose prompts memory is planned where one of the recipe's own is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine to train on."""

    gpus: int
    """0: it trains on its CPU."""
    gpu_gigabytes: float
    """Memory of each GPU, in 10^9 bytes."""
    host_gigabytes: float | None
    """Memory of the machine, in 10^9 bytes; None if unknown."""

    @classmethod
    def parse(cls, text: str) -> "Node":
        """Read `8xH100-80GB`: the number of GPUs, their name, and the memory of each in GiB.

        Raises:
            InputError: it is not of this form.
        """
        found = re.fullmatch(r"([1-9]\d*)x[A-Za-z][\w-]*-(\d+)GB", text)
        if found is None:
            raise InputError(f"--node is of the form 8xH100-80GB, got {text!r}")
        memory = int(found[2]) * 2**30 / 1e9
        return cls(gpus=int(found[1]), gpu_gigabytes=memory, host_gigabytes=None)

    @classmethod
    def here(cls) -> "Node":
        """Return this machine, as far as its memory is free."""
        free = measure_free_memory()
        gpus = torch.cuda.device_count()
        each = min(torch.cuda.mem_get_info(number)[0] for number in range(gpus)) if gpus else 0
        return cls(
            gpus=gpus,
            gpu_gigabytes=each / 1e9,
            host_gigabytes=None if free is None else free / 1e9,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether one thing that a run needs is there."""

    what: str
    state: State
    detail: str
    """What was found, and what to change where it is not ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCheck:
    """What was found; the plan is that of each rank."""

    findings: tuple[Finding, ...]
    plan: RunPlan | None
    """None if a setting forbids a plan."""

    @property
    def ready(self) -> bool:
        """Whether nothing is known to be missing."""
        return all(finding.state != "not ready" for finding in self.findings)


async def check_training(recipe: Recipe, node: Node | None = None) -> TrainingCheck:
    """Look for all that a run needs, without loading a weight of its models.

    Args:
        recipe: of the run.
        node: the machine that it will run on, with a rank on each GPU, or Ray's learners; None is
            this one, with as many ranks as were started.
    """
    findings = list(_check_data(recipe))
    missing = any(finding.state == "not ready" for finding in findings)
    # A set that is missing has a finding already, and would be named here once more.
    if not missing:
        try:
            validation_prompts(recipe.data)
        except InputError as error:
            findings.append(Finding(what="data.validation", state="not ready", detail=str(error)))
    shown = (STAND_IN,) if recipe.data.demonstrations else ()
    stand_in = DataSettings(
        prompts=(STAND_IN,), demonstrations=shown, solutions=recipe.data.solutions
    )
    planned = replace(recipe, data=stand_in) if missing else recipe
    try:
        plan = _plan(planned, node)
    except WaltzError as error:
        findings.insert(0, Finding(what="plan", state="not ready", detail=str(error)))
        plan = None
    if plan is not None:
        findings = [*_check_memory(recipe, plan, node or Node.here()), *findings]
    findings += [await _check_judge(recipe), *[one async for one in _check_samplers(recipe)]]
    findings += _check_keeping(recipe)
    return TrainingCheck(findings=tuple(findings), plan=plan)


def _plan(recipe: Recipe, node: Node | None) -> RunPlan:
    if node is None:
        return plan_training(recipe)
    # `auto` is bfloat16 on a GPU; `resolve_compute` would look for one on this machine.
    half = recipe.compute.dtype != "float32"
    compute = Compute(
        device=torch.device("cuda"),
        dtype=torch.bfloat16 if half else torch.float32,
        checkpoint_activations=recipe.compute.checkpoint_activations,
    )
    learners = None if recipe.compute.engine == "ray" else node.gpus
    return plan_training(recipe, compute, learners)


def _check_memory(recipe: Recipe, plan: RunPlan, node: Node) -> Iterator[Finding]:
    if not isinstance(recipe.models.base, str) and recipe.models.pair is None:
        yield Finding(what="base", state="ready", detail="made from scratch, small")
        return
    if plan.gigabytes is None or plan.parameters is None:
        advice = "give a folder that holds its config.json as models.base"
        detail = f"{plan.base} is not here, and its shape is not known; {advice}"
        yield Finding(what="base", state="not ready", detail=detail)
        return
    yield Finding(what="base", state="ready", detail=f"{plan.base}, {plan.layout}")
    copies = plan.ranks if plan.layout == "adapters" else 1
    loading = copies * plan.parameters * LOADED_BYTES / 1e9
    host, needed = node.host_gigabytes, loading
    many = "1 rank" if plan.ranks == 1 else f"{plan.ranks} ranks"
    if plan.device == "cuda":
        need, has = plan.gigabytes * GPU_ALLOWANCE, node.gpu_gigabytes * GPU_SHARE
        fits = need <= has
        detail = f"{many}, a GPU each: {need:.0f} of {has:.0f} GB"
        yield Finding(
            what="GPU memory",
            state="ready" if fits else "not ready",
            detail=detail if fits else f"{detail}; {_advise(recipe)}",
        )
    else:
        # All ranks on a CPU share its memory, while each has a GPU of its own.
        needed = max(loading, plan.ranks * plan.gigabytes)
    detail = f"{needed:.3g} GB for {many}"
    if host is None:
        yield Finding(what="host memory", state="unknown", detail=detail)
    else:
        yield Finding(
            what="host memory",
            state="ready" if needed <= host else "not ready",
            detail=f"{detail}, {host:.3g} GB are free",
        )


def _advise(recipe: Recipe) -> str:
    """Say what makes a run smaller that does not fit."""
    if recipe.models.layout != "adapters":
        return 'set models.layout = "adapters", or take GPUs of more memory'
    if not recipe.compute.checkpoint_activations:
        return "set compute.checkpoint_activations = true"
    return "lower optimizer.micro_batch_tokens, or take GPUs of more memory"


def _check_data(recipe: Recipe) -> Iterator[Finding]:
    data = recipe.data
    for key in ("prompts", "held_out", "validation"):
        for name in getattr(data, key):
            try:
                count = len(read_set(name, "learning") if key == "prompts" else read_sets([name]))
            except InputError as error:
                public = find_set(name.partition(":")[0])
                source = f"; get it from {public.page}" if public and public.page else ""
                yield Finding(what=f"data.{key}", state="not ready", detail=f"{error}{source}")
            else:
                detail = f"{name}: {count:,} prompts"
                yield Finding(what=f"data.{key}", state="ready", detail=detail)
    if data.demonstrations:
        try:
            # Without the sets that they must not touch, which are findings of their own.
            count = len(training_demonstrations(replace(data, held_out=(), validation=())))
        except InputError as error:
            yield Finding(what="data.demonstrations", state="not ready", detail=str(error))
        else:
            yield Finding(what="data.demonstrations", state="ready", detail=f"{count:,}")


async def _check_judge(recipe: Recipe) -> Finding:
    try:
        name = await require_judge(recipe.judge, judges_prompts=recipe.judge_prompts)
    except WaltzError as error:
        return Finding(what="judge", state="not ready", detail=str(error))
    return Finding(what="judge", state="ready", detail=name)


def _check_keeping(recipe: Recipe) -> Iterator[Finding]:
    """Look for what shows and copies the run elsewhere."""
    if recipe.wandb_project is not None:
        try:
            find_wandb_project(recipe)
        except ModuleNotFoundError as error:
            detail = str(missing_extra(error))
            yield Finding(what="wandb_project", state="not ready", detail=detail)
        else:
            yield Finding(what="wandb_project", state="ready", detail=recipe.wandb_project)
    if recipe.checkpointing.copies is not None:
        try:
            # Its constructor writes a file there and deletes it; the folder is not looked at.
            RunCopy(recipe.checkpointing.copies, Path())
        except RecipeError as error:
            yield Finding(what="checkpointing.copies", state="not ready", detail=str(error))
        else:
            detail = f"{recipe.checkpointing.copies} can be written to"
            yield Finding(what="checkpointing.copies", state="ready", detail=detail)


async def _check_samplers(recipe: Recipe) -> AsyncIterator[Finding]:
    """Look for what samples, where this process does not."""
    if recipe.compute.rollouts == STARTED:
        found = shutil.which("vllm")
        detail = f"Ray starts {found}" if found else "Ray starts `vllm`, which is not on the PATH"
        yield Finding(what="vLLM", state="ready" if found else "not ready", detail=detail)
    for server in recipe.compute.servers:
        # vLLM has its health check beside the API, and not below /v1.
        url = server.rstrip("/").removesuffix("/v1")
        try:
            async with aiohttp.request("GET", f"{url}/health", timeout=PATIENCE) as response:
                healthy, detail = response.status == 200, f"{url}/health: {response.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            healthy, detail = False, f"{url}: {error or 'no answer'}"
        yield Finding(what="vLLM", state="ready" if healthy else "not ready", detail=detail)
