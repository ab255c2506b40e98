"""What samples the rollouts of a run: its ranks, vLLM servers, or processes beside the ranks."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from waltzrl.policies.vllm import VllmServers
from waltzrl.training import ranks
from waltzrl.training.recipe import Recipe
from waltzrl.training.roles import Team
from waltzrl.training.rollouts import Spread, run_on_first_rank, spread_over_ranks

PUBLISHED = "published"
"""Folder inside a run, while it lasts, of the adapters that vLLM servers load."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Samplers:
    """What samples the rollouts of a run."""

    team: Team
    """The agents, where this process rolls out."""
    spread: Callable[[str], Spread]
    """The spread of a stage, by its name, or of the validation."""
    publish: Callable[[int, Sequence[str]], Awaitable[None]] | None = None


OpenSamplers = Callable[[Team, Path], AbstractAsyncContextManager[Samplers]]
"""A function that opens what samples for a team, whose run is in a folder."""


@asynccontextmanager
async def open_samplers(recipe: Recipe, team: Team, folder: Path) -> AsyncIterator[Samplers]:
    """Yield what samples: the ranks, or servers."""
    if not recipe.compute.servers:
        yield Samplers(team=team, spread=lambda _: spread_over_ranks)
        return
    async with open_vllm(recipe.compute.servers, team, folder) as samplers:
        yield samplers


@asynccontextmanager
async def open_vllm(urls: Sequence[str], team: Team, folder: Path) -> AsyncIterator[Samplers]:
    """Yield servers that sample; the first rank asks them, for all."""
    if not ranks.is_first():
        yield Samplers(team=team, spread=lambda _: run_on_first_rank)
        return
    base = team.weights["conversation"].causal_lm
    async with VllmServers(urls, base, folder / PUBLISHED) as servers:
        sampled = team.sampled_by(servers.policy)
        yield Samplers(team=sampled, spread=lambda _: run_on_first_rank, publish=servers.publish)
