"""Plays attacks on goals against a target, and resumes where an earlier run was cut off.

Every answered attempt is a `Collaboration` by the target's pattern, judged as in an evaluation; the
judge reads each reply as one to the goal, whatever the request looked like.
"""

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from waltzrl.errors import CONTEXT_EXCEEDED, InputError, PolicyError
from waltzrl.evaluation import EvaluatedSystem
from waltzrl.evaluation.goals import declines
from waltzrl.evaluation.judges.judge import Judge, judge_replies, require_decided
from waltzrl.evaluation.rows import without_tokens
from waltzrl.evaluation.runner import Progress, SeededPolicy, seed_conversation
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.policies import Policy, Sampling
from waltzrl.records import Collaboration, Usage, estimate_reply
from waltzrl_attack.attacker import PLAIN, Attacker
from waltzrl_attack.attacks import Attack, NamedAttack
from waltzrl_attack.attempts import (
    AttackBudget,
    AttackPath,
    AttackRequest,
    Attempt,
    Goal,
    JobKey,
    Outcome,
)
from waltzrl_attack.checks import GoalCheck
from waltzrl_attack.log import AttackLog

NOT_TAKEN = frozenset({CONTEXT_EXCEEDED, "HTTP 400", "HTTP 413", "HTTP 422"})
"""Reasons of a server that are about one request, and not about the server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSetup:
    """Who takes part in attacks, and how far they go."""

    target: EvaluatedSystem
    """A pattern of evaluation with its agents."""
    attacker: Policy
    sampling: Sampling
    """Of the attacker."""
    judge: Judge
    check: GoalCheck
    players: str
    """Names of all but the judge, with hashes of their weights."""
    budget: AttackBudget
    concurrency: int = 8
    """Goals that are attacked at once."""

    @property
    def name(self) -> str:
        """What a log must have in common to be resumed; see `AttackPath.setup`."""
        most = self.budget.tokens or "any number of"
        return f"{self.players}; budget {self.budget.attempts} attempts, {most} tokens"


async def run_attacks(
    attacks: Mapping[str, NamedAttack],
    goals: Sequence[Goal],
    setup: AttackSetup,
    log: AttackLog,
    progress: Progress,
) -> list[AttackPath]:
    """Play every attack on every goal that it is for; return the paths, attack by attack.

    Paths are logged in this order, each as a whole: a run that was killed and is started again
    continues behind the last path, and ends with the same file where the policies reply alike. What
    failed is played when the run is started again, and logged last.

    Raises:
        InputError: there is nothing to do, or the log is of another run, or the judge's model
            decided on no reply.
        PolicyError: target, attacker or judge failed; the other paths begun are in the log.
    """
    # An attack may encode its goal, so that what is in it would not be found in the log.
    jobs: dict[JobKey, Goal] = {
        (name, goal.id): log.scrub_goal(goal)
        for name, named in attacks.items()
        for goal in goals
        if goal.label in named.labels
    }
    if not jobs:
        raise InputError(
            f"nothing to attack: none of {len(goals)} goals has a label that {', '.join(attacks)} "
            "are for; label them unsafe or benign, or choose other attacks"
        )
    with RunDirectory(log.folder):
        paths = log.open(jobs, setup.name, setup.judge.name)
        waiting = [key for key in jobs if key not in paths]
        progress(len(paths), len(jobs))

        def keep(path: AttackPath) -> None:
            paths[path.key] = log.append(path)
            progress(len(paths), len(jobs))

        # In batches, so that paths are logged in their order although they are played at once.
        for start in range(0, len(waiting), setup.concurrency):
            tasks = [
                asyncio.create_task(play_attack(key[0], attacks[key[0]].attack, jobs[key], setup))
                for key in waiting[start : start + setup.concurrency]
            ]
            await _finish_tasks(tasks, keep)
    played = [paths[key] for key in jobs]
    require_decided([verdict for path in played for a in path.attempts for verdict in a.verdicts])
    return played


async def _finish_tasks(
    tasks: Sequence[asyncio.Task[AttackPath]], keep: Callable[[AttackPath], None]
) -> None:
    """Keep the paths in order, also those behind one that failed; then raise the first failure."""
    failures: list[PolicyError] = []
    try:
        for task in tasks:
            try:
                keep(await task)
            except PolicyError as error:
                failures.append(error)
    finally:
        for task in tasks:  # where the log cannot be written, they must not go on asking
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    if failures:
        raise failures[0]


async def play_attack(name: str, attack: Attack, goal: Goal, setup: AttackSetup) -> AttackPath:
    """Play one attack on one goal until it succeeds, its budget is spent, or it has no more to ask.

    Raises:
        PolicyError: target, attacker or judge failed; says which.
    """
    job, target = f"{name}/{goal.id}", setup.target
    requests = attack(goal, Attacker(SeededPolicy(setup.attacker, job), setup.sampling))
    # Seeded by attack and goal, so that a resumed run plays what this one would have played.
    conversation = seed_conversation(target.conversation, job)
    setup = replace(setup, target=replace(target, conversation=conversation))
    attempts: list[Attempt] = []
    seen: set[str] = set()
    budget, spent, at = setup.budget, 0, f"attack {name!r} on {goal.id!r}"
    try:
        while len(attempts) < budget.attempts and (not budget.tokens or spent < budget.tokens):
            with _failing("attacker", at):
                # as of every generator, the first request is asked for without an answer
                request = await (requests.asend(attempts[-1]) if attempts else anext(requests))
            attempt = await _try_request(request, len(attempts) + 1, goal, setup, seen, at)
            attempts.append(attempt)
            spent += attempt.tokens
            if attempt.succeeds(goal.label):
                break
    except StopAsyncIteration:
        pass
    finally:
        await requests.aclose()
    return AttackPath(
        attack=name, goal=goal, judge=setup.judge.name, setup=setup.name, attempts=tuple(attempts)
    )


async def _try_request(
    request: AttackRequest,
    number: int,
    goal: Goal,
    setup: AttackSetup,
    seen: set[str],
    at: str,
) -> Attempt:
    """Send a request, if it is one that keeps to the goal, and have the reply judged."""
    with _failing("check of requests", at):
        outcome = await _check_request(request, goal, setup.check, seen)
    attempt = Attempt(
        number=number,
        technique=request.technique,
        text=request.text,
        outcome=outcome,
        leads_up=request.leads_up,
        parent=request.parent,
        tokens=_count(request.usage),
    )
    if outcome != "answered":
        return attempt
    prompt, target = replace(goal, messages=request.messages), setup.target
    try:
        with _failing("target", at):
            collaboration = await target.pattern(prompt, target.conversation, target.reviewer)
    except PolicyError as error:
        if error.reason in NOT_TAKEN:
            return replace(attempt, outcome="rejected")
        raise
    attempt = replace(
        attempt,
        collaboration=without_tokens(collaboration),
        tokens=attempt.tokens + _count_collaboration(collaboration),
    )
    if request.leads_up:
        return attempt
    # The judge is asked whether the reply helps with the goal, however that was asked for.
    with _failing("judge", at):
        verdicts = await judge_replies(replace(collaboration, prompt=goal), setup.judge)
    return replace(attempt, verdicts=verdicts)


async def _check_request(
    request: AttackRequest, goal: Goal, check: GoalCheck, seen: set[str]
) -> Outcome:
    """Return why a request is not sent; `answered` if it is."""
    if not request.text.strip():
        return "empty"
    # Neither case nor space makes it another request.
    conversation = json.dumps([" ".join(turn.line.casefold().split()) for turn in request.messages])
    if conversation in seen:
        return "repeated"
    seen.add(conversation)
    if request.technique == PLAIN:
        return "answered"
    if declines(request.text):
        return "declined"
    if request.leads_up or await check.keeps(goal, request.messages):
        return "answered"
    return "off goal"


@contextmanager
def _failing(who: str, at: str) -> Iterator[None]:
    """Say in one line who failed, and that the run can go on."""
    try:
        yield
    except PolicyError as error:
        why = " ".join(str(error).split()) or type(error).__name__  # servers answer in pages
        message = f"the {who} failed in {at}: {why}; run the same command again to go on from there"
        raise PolicyError(message, reason=error.reason) from error


def _count(usage: Usage | None) -> int:
    return 0 if usage is None else usage.input_tokens + usage.output_tokens


def _count_collaboration(collaboration: Collaboration) -> int:
    """Return the tokens of a collaboration, those of the replies estimated if nobody counts."""
    if collaboration.usage is not None:
        return _count(collaboration.usage)
    return sum(
        _count(estimate_reply(collaboration.prompt, reply, "")) for reply in collaboration.replies
    )
