"""Runs every system on every prompt, and resumes where an earlier run was cut off."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from waltzrl.agents import ConversationAgent
from waltzrl.collaboration import Pattern, Reviewer
from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation.judges.judge import Judge, judge_replies, require_decided
from waltzrl.evaluation.rows import (
    EvaluationRow,
    Key,
    RowLog,
    read_evaluation,
    read_rows,
    without_tokens,
    write_rows,
)
from waltzrl.foundation.background import gather_all
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.policies import Policy, Sampling
from waltzrl.records import JudgedCollaboration, Message, Prompt, Reply

Progress = Callable[[int, int], None]
"""A function called after every row with the rows done and the rows in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSystem:
    """One row of the table: a pattern with its agents."""

    name: str
    pattern: Pattern
    conversation: ConversationAgent
    reviewer: Reviewer
    samples: int = 1
    """Replies to every prompt, each with random numbers of its own."""
    agents: str = ""
    """Names of the agents, hashes of their weights, and settings: a log by other agents is not
    resumed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    system: EvaluatedSystem
    prompt: Prompt
    sample: int

    @property
    def key(self) -> Key:
        return (self.system.name, (self.prompt.id, self.sample))

    @property
    def conversation(self) -> ConversationAgent:
        return seed_conversation(self.system.conversation, f"{self.prompt.id}/{self.sample}")


def seed_conversation(agent: ConversationAgent, job: str) -> ConversationAgent:
    """Return the agent; where it samples, with random numbers of the job; see `SeededPolicy`."""
    if not agent.sampling.temperature:
        return agent
    policy = SeededPolicy(agent.policy, job)
    reviser = None if agent.reviser is None else SeededPolicy(agent.reviser, job)
    return ConversationAgent(policy, agent.wording, agent.sampling, agent.examples, reviser)


class SeededPolicy:
    """Seeds every reply of one job, so that it does not depend on what else is generated.

    An evaluation that is resumed then samples the replies that it would have sampled.
    """

    def __init__(self, policy: Policy, job: str) -> None:
        """Reply as `policy`; `job` is the name that the seeds are derived from."""
        self._policy, self._job, self._replies = policy, job, 0

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        self._replies += 1
        digest = hashlib.sha256(f"{self._job}/{self._replies}".encode()).digest()
        seed = int.from_bytes(digest[:4]) >> 1  # servers take 31 bits
        return await self._policy.reply(messages, replace(sampling, seed=seed))


async def evaluate(
    systems: Sequence[EvaluatedSystem],
    prompts: Sequence[Prompt],
    judge: Judge,
    folder: Path,
    concurrency: int,
    progress: Progress,
) -> list[EvaluationRow]:
    """Run every system on every prompt; return the rows, system by system.

    Rows already in the folder's log are not generated again, unless they failed or their prompt has
    changed since: running the same command again resumes. A log by other agents is refused.

    Work goes in chunks of `concurrency` collaborations that start in one pass of the event loop:
    a policy that batches the calls waiting for it then sees a full batch of drafts, then of
    feedback, then of revisions. A semaphore would let them drift apart into small batches.

    Raises:
        InputError: nothing to do, names or ids that repeat, a log of another judge or by other
            agents, a folder that cannot be written or that another process uses, or, once all is in
            the log, a judge whose model decided on no reply.
    """
    _require_distinct(systems, prompts)
    jobs = [
        _Job(system=system, prompt=prompt, sample=sample)
        for system in systems
        for prompt in prompts
        for sample in range(system.samples)
    ]
    logged = _find_comparable(jobs, folder)
    rows = _find_finished(logged, judge, folder)
    unjudged = {key: row for key, row in logged.items() if row.unjudged is not None}
    waiting = [job for job in jobs if job.key not in rows]
    revisions = {revision for row in rows.values() for revision in row.revisions}
    with RunDirectory(folder), RowLog(folder) as log:

        def keep(row: EvaluationRow) -> None:
            row = _unjudge_other_revision(row, revisions)
            revisions.update(row.revisions)
            log.append(row)
            rows[row.key] = row
            progress(len(rows), len(jobs))

        for start in range(0, len(waiting), concurrency):
            chunk = waiting[start : start + concurrency]
            await _as_they_finish(
                [_run_job(job, judge, unjudged.get(job.key)) for job in chunk], keep
            )
    done = [rows[job.key] for job in jobs]
    _require_decided(done)
    return done


async def rescore(folder: Path, judge: Judge, into: Path, concurrency: int) -> list[EvaluationRow]:
    """Judge a folder's replies again, generate nothing, and write the rows to `into`.

    `into` may be the folder itself: its log is replaced only once every reply is judged.

    Raises:
        InputError: the folder has no rows, `into` cannot be written or is in use, or the judge's
            model decided on no reply.
        PolicyError: the judge asks a policy, and that could not reply.
    """
    rows = read_evaluation(folder)
    with RunDirectory(into):
        fresh: list[EvaluationRow] = []
        for start in range(0, len(rows), concurrency):
            chunk = rows[start : start + concurrency]
            fresh += await gather_all(_rejudge_row(row, judge) for row in chunk)
        _require_decided(fresh)
        # Only now: a judge that decides nothing must not replace earlier verdicts.
        write_rows(into, fresh)
    return fresh


def require_complete(rows: Sequence[EvaluationRow]) -> None:
    """Check that no collaboration failed.

    Raises:
        PolicyError: some did; the others are in the log.
    """
    if failed := [row for row in rows if row.error]:
        raise PolicyError(
            f"{len(failed)} of {len(rows)} collaborations failed; first: {failed[0].prompt_id}: "
            f"{failed[0].error}; run the same command again to try only these"
        )


def _require_decided(rows: Iterable[EvaluationRow]) -> None:
    require_decided([verdict for row in rows if row.judged for verdict in row.judged.verdicts])


def _require_distinct(systems: Sequence[EvaluatedSystem], prompts: Sequence[Prompt]) -> None:
    if not systems or not prompts:
        raise InputError(
            f"nothing to evaluate: {len(systems)} patterns on {len(prompts)} prompts; "
            "name at least one pattern and a set that is not empty"
        )
    for kind, names in (
        ("pattern", [system.name for system in systems]),
        ("prompt id", [prompt.id for prompt in prompts]),
    ):
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise InputError(f"{kind} {name!r} occurs {times} times; each needs its own")


def _find_comparable(jobs: Sequence[_Job], folder: Path) -> dict[Key, EvaluationRow]:
    """Rows of an earlier run, by the same agents on the same prompts, that have a collaboration."""
    prompts = {job.key: job.prompt for job in jobs}
    agents = {job.system.name: job.system.agents for job in jobs}
    rows: dict[Key, EvaluationRow] = {}
    for row in read_rows(folder):
        collaboration = row.unjudged if row.judged is None else row.judged.collaboration
        if collaboration is None:
            continue
        if row.agents != (ours := agents.get(row.pattern, row.agents)):
            raise InputError(
                f"{folder} holds {row.pattern!r} by {row.agents or 'unknown agents'}, "
                f"this run has {ours or 'unknown agents'}; choose another folder"
            )
        if collaboration.prompt == prompts.get(row.key):
            rows[row.key] = row
    return rows


def _find_finished(
    rows: Mapping[Key, EvaluationRow], judge: Judge, folder: Path
) -> dict[Key, EvaluationRow]:
    """Rows that can stand as they are."""
    finished = {key: row for key, row in rows.items() if row.judged is not None}
    for row in finished.values():
        if row.judge != judge.name:
            raise InputError(
                f"{folder} was judged by {row.judge}, this run's judge is {judge.name}; "
                "rescore that folder or choose another one"
            )
    return finished


def _unjudge_other_revision(row: EvaluationRow, revisions: Collection[str]) -> EvaluationRow:
    """Leave a row unjudged if another revision of the judge's model gave the verdicts before it."""
    others = row.revisions.difference(revisions)
    if row.judged is None or not revisions or not others:
        return row
    return replace(
        row,
        judged=None,
        unjudged=row.judged.collaboration,
        error=(
            f"the judge's model is of revision {min(others)!r}, and of {min(revisions)!r} in the "
            "rows before; serve that revision again, or rescore the folder"
        ),
    )


async def _as_they_finish(
    runs: Iterable[Coroutine[None, None, EvaluationRow]], keep: Callable[[EvaluationRow], None]
) -> None:
    """Start all runs at once and keep each row as soon as it is there.

    Not a TaskGroup: that would wrap an unwritable log in an ExceptionGroup, and people would no
    longer read one line.
    """
    tasks = [asyncio.create_task(run) for run in runs]
    try:
        for finished in asyncio.as_completed(tasks):
            keep(await finished)
    finally:
        for task in tasks:
            # After an error the others must not go on asking policies.
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run_job(job: _Job, judge: Judge, earlier: EvaluationRow | None) -> EvaluationRow:
    """Run one collaboration and judge it; this is where a failed one becomes data.

    Args:
        job: what to run.
        judge: labels every reply.
        earlier: the row of an earlier run in which only the judge failed.
    """
    row = EvaluationRow(
        pattern=job.system.name,
        prompt_id=job.prompt.id,
        sample=job.sample,
        judge=judge.name,
        agents=job.system.agents,
    )
    if earlier is not None:
        row = replace(earlier, judge=judge.name, error="")
    try:
        if row.unjudged is None:
            row = await _generate_row(row, job)
        return await _rejudge_row(row, judge)
    except PolicyError as error:
        return replace(row, error=str(error) or type(error).__name__)


async def _generate_row(row: EvaluationRow, job: _Job) -> EvaluationRow:
    system, started = job.system, perf_counter()
    collaboration = await system.pattern(job.prompt, job.conversation, system.reviewer)
    return replace(
        row,
        unjudged=without_tokens(collaboration),
        milliseconds=(perf_counter() - started) * 1000,
        tokens=collaboration.usage.output_tokens if collaboration.usage else None,
    )


async def _rejudge_row(row: EvaluationRow, judge: Judge) -> EvaluationRow:
    """Judge a row's collaboration, again or for the first time."""
    collaboration = row.unjudged if row.judged is None else row.judged.collaboration
    if collaboration is None:
        return replace(row, judge=judge.name)
    judged = JudgedCollaboration(
        collaboration=collaboration, verdicts=await judge_replies(collaboration, judge)
    )
    return replace(row, judge=judge.name, judged=judged, unjudged=None, error="")
