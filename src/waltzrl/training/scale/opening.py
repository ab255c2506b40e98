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
    Report,
    Trained,
    bound_pattern,
    join_ranks,
    open_team,
    require_shares,
    train_and_export,
)
from waltzrl.training.recipe import Recipe
from waltzrl.training.roles import Team
from waltzrl.training.samplers import Samplers, open_vllm
from waltzrl.training.scale.cluster import (
    RESTARTS,
    has_gpus,
    hold_places,
    join_cluster,
    run_learners,
)
from waltzrl.training.scale.servers import ServerProcess, start_servers
from waltzrl.training.scale.workers import Collaborators, Crew, RolloutWorker, RolloutWorkers
from waltzrl.training.validation import VALIDATION

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
    with join_cluster(settings.address):
        gpu = recipe.compute.device != "cpu" and has_gpus()
        with hold_places(settings, recipe.compute.threads or 1, gpu=gpu) as places:
            numbers = range(settings.learners, settings.learners + settings.workers)
            if recipe.compute.rollouts == STARTED:
                servers = partial(run.folder.joinpath, "servers")
                workers = [
                    places.start(number, ServerProcess, servers(f"{number}.log"), restarts=RESTARTS)
                    for number in numbers
                ]
            else:
                workers = [
                    places.start(number, RolloutWorker, run.open_crew, restarts=RESTARTS)
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
                samplers=partial(self._samplers, workers) if workers else None,
            )

    @asynccontextmanager
    async def _samplers(
        self, workers: Sequence["ActorHandle"], team: Team, folder: Path
    ) -> AsyncIterator[Samplers]:
        """Yield the workers as what samples: servers, or processes that roll out."""
        if self.recipe.compute.rollouts == STARTED:
            command = serve_command(team.weights["conversation"].causal_lm)
            urls = await start_servers(workers, command) if ranks.is_first() else []
            async with open_vllm(urls, team, folder) as samplers:
                yield samplers
            return
        dtype = resolve_compute(self.recipe.compute).dtype
        asked = RolloutWorkers(workers, team.weights, dtype)
        yield Samplers(team=team, spread=asked.spread, publish=asked.publish)

    @asynccontextmanager
    async def open_crew(self) -> AsyncIterator[Crew]:
        """Yield agents, judge and patterns of a rollout worker."""
        self._enter()
        recipe, folder = self.recipe, self.folder
        opening = open_judge(recipe.judge, judges_prompts=recipe.judge_prompts, cached=True)
        async with opening as judge:
            team, _ = open_team(recipe, folder, resolve_compute(recipe.compute))
            parts = [(stage.name, team, stage) for stage in recipe.reinforcements]
            if (last := recipe.validated_stage) is not None:
                parts.append((VALIDATION, team.greedy(), last))
            judge = RunJudge(judge, folder)
            yield Crew(
                weights=team.weights,
                stages={
                    name: Collaborators(
                        team=agents,
                        pattern=bound_pattern(recipe, stage, agents.feedback),
                        judge=judge,
                    )
                    for name, agents, stage in parts
                },
            )

    def _enter(self) -> None:
        if self.start.is_dir():
            os.chdir(self.start)
