"""Runs every contestant on every prompt, and picks up where it was cut off."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter

from waltzrl.agents import ConversationAgent, Reviewer
from waltzrl.collaboration import Pattern
from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation.rows import (
    EvaluationRow,
    Key,
    RowLog,
    read_evaluation,
    read_rows,
    without_tokens,
    write_rows,
)
from waltzrl.judges import Judge
from waltzrl.records import Collaboration, JudgedCollaboration, Prompt, Verdict

Progress = Callable[[int, int], None]
"""Told after every row: rows done, rows in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedSystem:
    """One row of the table: a pattern, and the agents it is played with."""

    name: str
    pattern: Pattern
    conversation: ConversationAgent
    reviewer: Reviewer
    agents: str = ""
    """Names of the agents, hashes of their weights, and settings, for the log: rows by others are
    never taken for this contestant's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    contestant: EvaluatedSystem
    prompt: Prompt

    @property
    def key(self) -> Key:
        return (self.contestant.name, self.prompt.id)


async def evaluate(
    contestants: Sequence[EvaluatedSystem],
    prompts: Sequence[Prompt],
    judge: Judge,
    folder: Path,
    concurrency: int,
    progress: Progress,
) -> list[EvaluationRow]:
    """Play every contestant on every prompt; return the rows, contestant by contestant.

    Rows already in the folder's log are not played again, unless they failed or their prompt has
    changed since: running the same command again resumes. A log by other agents is refused.

    Work goes in chunks of `concurrency` collaborations that start in one pass of the event loop:
    a policy that batches the calls waiting for it then sees a full batch of drafts, then of
    feedback, then of revisions. A semaphore would let them drift apart into small batches.

    Raises:
        InputError: nothing to do, names or ids that repeat, a log of another judge or by other
            agents, or a folder that cannot be written.
    """
    jobs = [_Job(contestant=c, prompt=p) for c in contestants for p in prompts]
    _check(contestants, prompts)
    rows = _finished(jobs, judge, folder)
    waiting = [job for job in jobs if job.key not in rows]
    with RowLog(folder) as log:

        def keep(row: EvaluationRow) -> None:
            log.append(row)
            rows[row.key] = row
            progress(len(rows), len(jobs))

        for start in range(0, len(waiting), concurrency):
            chunk = waiting[start : start + concurrency]
            await _as_they_finish([_play(job, judge) for job in chunk], keep)
    return [rows[job.key] for job in jobs]


async def rescore(folder: Path, judge: Judge, into: Path, concurrency: int) -> list[EvaluationRow]:
    """Judge a folder's replies again, generate nothing, and write the rows to `into`.

    `into` may be the folder itself: its log is replaced only once every reply is judged.

    Raises:
        InputError: the folder has no rows, or `into` cannot be written.
        PolicyError: the judge asks a policy, and that could not reply.
    """
    rows = read_evaluation(folder)
    fresh: list[EvaluationRow] = []
    for start in range(0, len(rows), concurrency):
        chunk = rows[start : start + concurrency]
        fresh += await asyncio.gather(*(_rejudge(row, judge) for row in chunk))
    write_rows(into, fresh)
    return fresh


def _check(contestants: Sequence[EvaluatedSystem], prompts: Sequence[Prompt]) -> None:
    if not contestants or not prompts:
        raise InputError(
            f"nothing to evaluate: {len(contestants)} patterns on {len(prompts)} prompts; "
            "name at least one pattern and a set that is not empty"
        )
    for kind, names in (
        ("pattern", [c.name for c in contestants]),
        ("prompt id", [p.id for p in prompts]),
    ):
        name, times = Counter(names).most_common(1)[0]
        if times > 1:
            raise InputError(f"{kind} {name!r} occurs {times} times; each needs its own")


def _finished(jobs: Sequence[_Job], judge: Judge, folder: Path) -> dict[Key, EvaluationRow]:
    """Rows of an earlier run that can stand as they are."""
    prompts = {job.key: job.prompt for job in jobs}
    agents = {job.contestant.name: job.contestant.agents for job in jobs}
    kept: dict[Key, EvaluationRow] = {}
    for row in read_rows(folder):
        if row.judged is None:
            continue
        if row.agents != (ours := agents.get(row.pattern, row.agents)):
            raise InputError(
                f"{folder} holds {row.pattern!r} as played by {row.agents or 'unknown agents'}, "
                f"this run has {ours or 'unknown agents'}; choose another folder"
            )
        if row.judged.collaboration.prompt != prompts.get(row.key):
            continue
        if row.judge != judge.name:
            raise InputError(
                f"{folder} was judged by {row.judge}, this run's judge is {judge.name}; "
                "rescore that folder or choose another one"
            )
        kept[row.key] = row
    return kept


async def _as_they_finish(
    plays: Iterable[Coroutine[None, None, EvaluationRow]], take: Callable[[EvaluationRow], None]
) -> None:
    """Start all plays at once and hand over each row when it is there.

    Not a TaskGroup: that would wrap an unwritable log in an ExceptionGroup, and people would no
    longer read one line.
    """
    tasks = [asyncio.create_task(play) for play in plays]
    try:
        for finished in asyncio.as_completed(tasks):
            take(await finished)
    finally:
        for task in tasks:
            task.cancel()


async def _play(job: _Job, judge: Judge) -> EvaluationRow:
    """The boundary at which a failed collaboration becomes data."""
    who, started = job.contestant, perf_counter()
    row = EvaluationRow(
        pattern=who.name, prompt_id=job.prompt.id, judge=judge.name, agents=who.agents
    )
    try:
        said = await who.pattern(job.prompt, who.conversation, who.reviewer)
        milliseconds = (perf_counter() - started) * 1000
        verdicts = await _verdicts(said, judge)
    except PolicyError as error:
        return replace(row, error=str(error) or type(error).__name__)
    judged = JudgedCollaboration(collaboration=without_tokens(said), verdicts=verdicts)
    tokens = said.usage.output_tokens if said.usage else None
    return replace(row, judged=judged, milliseconds=milliseconds, tokens=tokens)


async def _verdicts(said: Collaboration, judge: Judge) -> tuple[Verdict, ...]:
    return tuple([await judge.judge(said.prompt, reply) for reply in said.replies])


async def _rejudge(row: EvaluationRow, judge: Judge) -> EvaluationRow:
    if row.judged is None:
        return replace(row, judge=judge.name)
    verdicts = await _verdicts(row.judged.collaboration, judge)
    return replace(row, judge=judge.name, judged=replace(row.judged, verdicts=verdicts))
