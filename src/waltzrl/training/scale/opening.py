"""The composition root of training on Ray: a recipe becomes learners and rollout workers."""

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from waltzrl.evaluation.judges.opening import open_judge
from waltzrl.policies.compute import STARTED, resolve_compute
from waltzrl.policies.vllm import serve_command
from waltzrl.training import ranks
from waltzrl.training.judging import RunJudge
from waltzrl.training.opening import (
    Trained,
    join_ranks,
    open_ranks_or_servers,
    open_team,
    require_shares,
    train_and_export,
)
from waltzrl.training.recipe import Recipe
from waltzrl.training.rollouts import Collaborators, Sampler, open_servers
from waltzrl.training.scale.cluster import (
    RESTARTS,
    has_gpus,
    hold_places,
    join_cluster,
    require_places,
    run_learners,
)
from waltzrl.training.scale.servers import ServerProcess, start_servers
from waltzrl.training.scale.workers import RolloutWorker, WorkerSampler
from waltzrl.training.trainer import Report

if TYPE_CHECKING:
    from ray.actor import ActorHandle


def train_on_ray(
    recipe: Recipe, folder: Path, export: Path | None, report: Report, *, digests: bool
) -> Trained:
    """Train on a cluster what `train_and_export` trains here.

    Args:
        recipe: its `compute.ray` names the cluster and the processes.
        folder: the run directory, which all machines of the cluster see at the same path.
        export: see `train_and_export`.
        report: called in this process after every step.
        digests: see `train_and_export`.

    Raises:
        InputError: there is no such cluster, or it has too little that is free.
        WaltzError: of the training.
    """
    settings = recipe.compute.ray
    run = _Run(
        recipe=recipe,
        folder=folder.absolute(),
        export=None if export is None else export.absolute(),
        digests=digests,
        start=Path.cwd(),
    )
    require_shares(recipe, settings.learners)
    cpus = recipe.compute.threads or 1
    # Here too, and not only in `hold_places`, because Ray takes seconds to start.
    require_places(settings, {"CPU": cpus}, {"CPU": os.cpu_count() or 1})
    with join_cluster(settings.address):
        gpu = recipe.compute.device != "cpu" and has_gpus()
        with hold_places(settings, cpus, gpu=gpu) as places:
            # The first places are the learners'.
            numbers = range(settings.learners, settings.learners + settings.workers)
            if recipe.compute.rollouts == STARTED:
                servers = partial(run.folder.joinpath, "servers")
                workers = [
                    places.start(number, ServerProcess, servers(f"{number}.log"), restarts=RESTARTS)
                    for number in numbers
                ]
            else:
                workers = [
                    places.start(number, RolloutWorker, run.open_collaborators, restarts=RESTARTS)
                    for number in numbers
                ]
            return run_learners(places, settings.learners, partial(run.learn, workers), report)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What every process of a run is told."""

    recipe: Recipe
    folder: Path
    export: Path | None
    digests: bool
    start: Path
    """The folder where the paths in the recipe begin, on machines that have it."""

    async def learn(self, workers: Sequence["ActorHandle"], report: Report) -> Trained:
        """Train as a rank."""
        self._enter()
        with join_ranks(self.recipe):
            return await train_and_export(
                self.recipe,
                self.folder,
                report,
                self.export,
                digests=self.digests,
                open_sampler=partial(self._open_sampler, workers)
                if workers
                else open_ranks_or_servers,
            )

    @asynccontextmanager
    async def _open_sampler(
        self,
        workers: Sequence["ActorHandle"],
        recipe: Recipe,
        collaborators: Collaborators,
        folder: Path,
    ) -> AsyncIterator[Sampler]:
        """Yield the workers as what samples: servers, or processes that roll out."""
        weights = collaborators.team.weights
        if recipe.compute.rollouts == STARTED:
            command = serve_command(weights["conversation"].causal_lm)
            urls = await start_servers(workers, command) if ranks.is_first() else []
            async with open_servers(urls, collaborators, folder) as sampler:
                yield sampler
            return
        yield WorkerSampler(workers, weights, resolve_compute(recipe.compute).dtype)

    @asynccontextmanager
    async def open_collaborators(self) -> AsyncIterator[Collaborators]:
        """Yield the agents and the judge of a rollout worker."""
        self._enter()
        recipe, folder = self.recipe, self.folder
        opening = open_judge(recipe.judge, judges_prompts=recipe.judge_prompts, cached=True)
        async with opening as judge:
            team, _ = open_team(recipe, folder, resolve_compute(recipe.compute))
            yield Collaborators(team=team, judge=RunJudge(judge, folder))

    def _enter(self) -> None:
        if self.start.is_dir():
            os.chdir(self.start)
