"""A Ray cluster: joining it, holding places on it, and seeing learners through to the end."""

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import Generic, TypeVar

from waltzrl.errors import InputError, MissingExtraError, RankError, WaltzError
from waltzrl.policies.compute import RaySettings
from waltzrl.training.trainer import Progress

try:
    import ray
    from ray.actor import ActorHandle
    from ray.exceptions import (
        GetTimeoutError,
        OutOfMemoryError,
        RayActorError,
        RayError,
        RayTaskError,
        WorkerCrashedError,
    )
    from ray.util import get_node_ip_address, placement_group, remove_placement_group
    from ray.util.placement_group import PlacementGroup
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ModuleNotFoundError as missing:
    raise MissingExtraError("compute.engine ray", "Ray", "ray") from missing

DIED = (RayActorError, OutOfMemoryError, WorkerCrashedError)
"""Errors that Ray raises for a process, or its machine, that ended."""
Result = TypeVar("Result")
Work = Callable[[Callable[[Progress], None]], Awaitable[Result]]
"""The work of a rank: a function of what it reports its steps to."""

LOCAL = "local"
"""The address of a Ray of this run on this machine alone."""
CONNECT_SECONDS = 10.0
"""The longest wait for the head of a cluster to accept a connection."""
RESTARTS = 3
"""Times that a process that died is started again: a worker in all, learners without a step."""

logger = logging.getLogger(__name__)


@contextmanager
def join_cluster(address: str) -> Iterator[None]:
    """Join a cluster as a driver, for the duration of the block.

    Raises:
        InputError: there is none.
    """
    host, colon, port = address.rpartition(":")
    with redirect_stdout(sys.stderr):  # Ray prints there what its processes log, to its very end
        try:
            if colon and "/" not in host:  # Ray itself would try for a minute, and then end us
                socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
            ray.init(address=address, logging_level=logging.WARNING)
        except (OSError, ValueError, RuntimeError, RayError) as error:
            raise InputError(
                f"no Ray cluster at {address} ({shorten_error(error)}); start one with"
                " `ray start --head`, or use --ray local for this machine alone"
            ) from error
        try:
            yield
        # What our own code raised in an actor, which Ray makes an error of its own too.
        except RayTaskError:
            raise
        except RayError as error:
            raise RankError(
                f"the Ray cluster at {address} is lost ({shorten_error(error)}); what was saved is"
                " kept: run the same command again, with a cluster or without --ray, to resume"
            ) from error
        finally:
            ray.shutdown()


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Places on a cluster, one for each process, that are held until the run ends."""

    group: PlacementGroup
    each: Mapping[str, float]
    """Resources that a process takes, such as {"CPU": 1}."""

    def start(self, number: int, process: type, *arguments: object, restarts: int) -> ActorHandle:
        """Start a process at a place; Ray starts it again where it dies, at most so often."""
        return (
            ray.remote(process)
            .options(
                num_cpus=self.each["CPU"],
                num_gpus=self.each.get("GPU", 0),
                max_restarts=restarts,
                max_task_retries=restarts,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    self.group, placement_group_bundle_index=number
                ),
            )
            .remote(*arguments)
        )


def require_places(
    settings: RaySettings, each: Mapping[str, float], resources: Mapping[str, float]
) -> None:
    """Check that a Ray on this machine alone has a place for every process: no machine joins it.

    Args:
        settings: how many processes, and where.
        each: what one needs, such as {"CPU": 1}.
        resources: what this machine has.

    Raises:
        InputError: it has too little.
    """
    count = settings.learners + settings.workers
    if settings.address == LOCAL and any(
        count * need > resources.get(kind, 0) for kind, need in each.items()
    ):
        raise InputError(
            f"{count} processes ({settings.learners} learners, {settings.workers} workers) need"
            f" {_describe_resources(each)} each; --ray local has this machine alone, with"
            f" {_describe_resources(resources)}: lower compute.ray.learners, compute.ray.workers or"
            " compute.threads, or give --ray the address of a larger cluster"
        )


@contextmanager
def hold_places(settings: RaySettings, cpus: int, *, gpu: bool) -> Iterator[Places]:
    """Hold a place for every process of a run.

    Args:
        settings: how many processes.
        cpus: of each.
        gpu: each has a GPU of its own.

    Raises:
        InputError: the cluster has too little that is free.
    """
    each = {"CPU": float(cpus)} | ({"GPU": 1.0} if gpu else {})
    require_places(settings, each, ray.cluster_resources())
    count = settings.learners + settings.workers
    group = placement_group([each] * count)
    try:
        try:
            ray.get(group.ready(), timeout=settings.wait_seconds)
        except GetTimeoutError:
            raise InputError(
                f"{count} processes ({settings.learners} learners, {settings.workers} workers) need"
                f" {_describe_resources(each)} each; after {settings.wait_seconds:g} s the cluster"
                f" has {_describe_resources(ray.available_resources())} free of"
                f" {_describe_resources(ray.cluster_resources())}: lower compute.ray.learners or"
                " compute.ray.workers, or add machines"
            ) from None
        yield Places(group=group, each=each)
    finally:
        remove_placement_group(group)


async def get_results(calls: Sequence["ray.ObjectRef"]) -> list[Result]:
    """Return what calls of actors return; an error of ours is raised as it was there.

    Raises:
        WaltzError: of a call.
    """
    with _raising_ours():
        returned: list[Result] = await asyncio.gather(*calls)
        return returned


@contextmanager
def _raising_ours() -> Iterator[None]:
    """Raise an error of ours in an actor as it was there."""
    try:
        yield
    except RayTaskError as error:
        if isinstance(error.cause, WaltzError):
            raise error.cause from None
        raise


def free_address() -> tuple[str, int]:
    """Return the address of this machine, as the others see it, and a port that is free."""
    with socket.socket() as free:
        # It is free again when this returns; nobody keeps it until the caller's process takes it.
        free.bind(("", 0))
        return get_node_ip_address(), free.getsockname()[1]


def shorten_error(error: Exception) -> str:
    """Return the first sentence of what Ray says."""
    return str(error).strip().partition("\n")[0].partition(". ")[0].rstrip(".")


def has_gpus() -> bool:
    """Return whether the cluster has any GPU."""
    return bool(ray.cluster_resources().get("GPU"))


def _describe_resources(resources: Mapping[str, float]) -> str:
    """Say how many CPUs, and GPUs where there are any."""
    counts = {kind: resources.get(kind, 0) for kind in ("CPU", "GPU")}
    return " and ".join(
        f"{count:g} {kind}" for kind, count in counts.items() if count or kind == "CPU"
    )


class LearningProcess(Generic[Result]):
    """A process that is one rank."""

    def __init__(self) -> None:
        # Ray runs the coroutines of an actor concurrently: `next_step` waits while `run` trains.
        self._steps: asyncio.Queue[Progress | None] = asyncio.Queue()

    async def address(self) -> tuple[str, int]:
        """Return where the other ranks can meet: this machine, and a port that is free."""
        return free_address()

    async def run(self, work: Work[Result], variables: Mapping[str, str]) -> Result:
        """Do a rank's work, with the variables of the environment that torchrun sets."""
        os.environ.update(variables)
        result = await work(self._steps.put_nowait)
        self._steps.put_nowait(None)
        return result

    async def next_step(self) -> Progress | None:
        """Return the next step that was taken, once it is; None after the last."""
        return await self._steps.get()


def run_learners(
    places: Places, count: int, work: Work[Result], report: Callable[[Progress], None]
) -> Result:
    """Do the work in `count` ranks, and again from the last checkpoint when one of them dies.

    Args:
        places: the first `count` are the ranks'.
        count: of the ranks.
        work: of each rank.
        report: called after every step.

    Returns:
        What the first rank returned.

    Raises:
        RankError: ranks died again and again, with no step in between.
        WaltzError: of the work.
    """
    failures = 0

    def forget_failures(step: Progress) -> None:
        nonlocal failures
        failures = 0
        report(step)

    while True:
        try:
            return _run_once(places, count, work, forget_failures)
        except (*DIED, RankError) as error:
            failures += 1
            if failures > RESTARTS:
                raise RankError(
                    f"learners ended {failures} times without a step in between, last:"
                    f" {shorten_error(error)}; see their logs in Ray's, and run the same command"
                    " again to resume"
                ) from error
            text = "a learner ended (%s); all start again from the last checkpoint"
            logger.warning(text, shorten_error(error))


def _run_once(
    places: Places, count: int, work: Work[Result], report: Callable[[Progress], None]
) -> Result:
    # None is restarted alone: the other ranks could not go on with it.
    actors = [places.start(number, LearningProcess, restarts=0) for number in range(count)]
    try:
        host, port = ray.get(actors[0].address.remote())
        meeting = {"MASTER_ADDR": host, "MASTER_PORT": str(port), "WORLD_SIZE": str(count)}
        running = [
            # Ray shows each actor its own GPU only, as number 0.
            actor.run.remote(work, meeting | {"RANK": str(rank), "LOCAL_RANK": "0"})
            for rank, actor in enumerate(actors)
        ]
        with _raising_ours():
            _follow_first_rank(actors[0], running, report)
            result: Result = ray.get(running[0])
            return result
    finally:
        # Ranks that wait for a dead one would keep their places.
        for actor in actors:
            ray.kill(actor)


def _follow_first_rank(
    first: ActorHandle, running: Sequence["ray.ObjectRef"], report: Callable[[Progress], None]
) -> None:
    """Report the steps of the first rank until all ranks are done, or one has failed."""
    step = first.next_step.remote()
    waiting = [step, *running]
    while waiting:
        (ready, *_), waiting = ray.wait(waiting)
        # The failure of any rank is raised here, not only that of the first.
        result = ray.get(ready)
        if ready == step and result is not None:
            report(result)
            step = first.next_step.remote()
            waiting.append(step)
