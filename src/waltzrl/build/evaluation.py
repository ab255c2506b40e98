"""The composition root of evaluation: names of patterns and agents become contestants."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from pydantic import Field

from waltzrl.agents import (
    ConversationAgent,
    FeedbackAgent,
    Reviewer,
    RulesReviewer,
    load_wording,
)
from waltzrl.build.datasets import AUDIT, audited_collaborations
from waltzrl.build.identity import identity
from waltzrl.build.models import local_policy, remote_policy
from waltzrl.collaboration import (
    GuardReviewer,
    OracleReviewer,
    Pattern,
    ReplayPattern,
    ServedPattern,
    collaborate,
    draft_only,
    guarded,
    load_keywords,
    observed,
    safeguard,
)
from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation import EvaluatedSystem, EvaluationRow, evaluate
from waltzrl.evaluation.runner import Progress
from waltzrl.judges import Judge, LinearGuard, read_replies
from waltzrl.policies import Policy, RemotePolicy, Sampling, SavedPolicy
from waltzrl.records import Prompt
from waltzrl.rules import load_rulebook

WITHOUT_WEIGHTS = {"rules", "keywords"}
"""Reviewers that are no policy: our rulebook, and the baseline of a plain keyword list."""
SAVED = "saved:"


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig:
    """Who plays what, and how the agents speak."""

    patterns: tuple[str, ...]
    """Of base, collaborate, safeguard, oracle, guarded, observe, guard, served and replay."""
    conversation: str
    """A folder in Hugging Face format; behind a server, the name of a model; or `saved:FILE`, or
    `audit:FOLDER`, whose contents the pattern `replay` says again."""
    feedback: str
    """The same, or `rules`, or `keywords`."""
    guard: str | None = None
    """Weights of a `LinearGuard`, for the pattern `guard`: a safeguard that is no model."""
    server: str | None = None
    """An OpenAI-compatible server's URL; None loads the agents into this process."""
    wording: str = "plain"
    max_new_tokens: Annotated[int, Field(ge=1)] = 512
    max_rounds: Annotated[int, Field(ge=0)] = 1
    concurrency: Annotated[int, Field(ge=1)] = 64
    """Collaborations at once."""


async def run_evaluation(
    contest: EvaluationConfig,
    prompts: Sequence[Prompt],
    judge: Judge,
    folder: Path,
    progress: Progress,
) -> list[EvaluationRow]:
    """Play every pattern on every prompt, into the folder's log; see `evaluate`.

    Raises:
        InputError: a pattern or an agent is unknown, there is nothing to do, or the folder
            cannot be written to.
        PolicyError: some collaborations failed; the others are in the log.
    """
    async with AsyncExitStack() as open_connections:
        policies = await _policies(contest, open_connections)
        players = _contestants(contest, policies, judge)
        rows = await evaluate(players, prompts, judge, folder, contest.concurrency, progress)
    if failed := [row for row in rows if row.error]:
        raise PolicyError(
            f"{len(failed)} of {len(rows)} collaborations failed; first: {failed[0].prompt_id}: "
            f"{failed[0].error}; run the same command again to try only these"
        )
    return rows


async def _policies(contest: EvaluationConfig, connections: AsyncExitStack) -> dict[str, Policy]:
    """Make the policies, by name; two agents of one name share theirs."""
    policies: dict[str, Policy] = {}
    for name in {contest.conversation} | ({contest.feedback} - WITHOUT_WEIGHTS):
        if name.startswith(SAVED):
            policies[name] = SavedPolicy(read_replies(Path(name.removeprefix(SAVED))))
        elif name.startswith(AUDIT):
            policies[name] = SavedPolicy({})
        elif contest.server is not None:
            remote = remote_policy(contest.server, name, concurrency=contest.concurrency)
            policies[name] = await connections.enter_async_context(remote)
        else:
            policies[name] = local_policy(name)
    return policies


def _contestants(
    contest: EvaluationConfig, policies: Mapping[str, Policy], judge: Judge
) -> list[EvaluatedSystem]:
    wording = load_wording(contest.wording)
    sampling = Sampling(max_new_tokens=contest.max_new_tokens)
    conversation = ConversationAgent(policies[contest.conversation], wording, sampling)
    feedback, reviewed = _reviewer(contest, policies)
    together: Pattern = partial(collaborate, max_rounds=contest.max_rounds)
    checked: Pattern = partial(guarded, max_rounds=contest.max_rounds)
    rounds = f"max_rounds {contest.max_rounds}"
    alone = (
        f"conversation {identity(contest.conversation, contest.server)}, "
        f"wording {contest.wording}, max_new_tokens {contest.max_new_tokens}"
    )
    known: dict[str, tuple[Pattern, Reviewer, str]] = {
        "base": (draft_only, feedback, alone),
        "collaborate": (together, feedback, f"{alone}, {reviewed}, {rounds}"),
        "safeguard": (safeguard, feedback, f"{alone}, {reviewed}"),
        "oracle": (together, OracleReviewer(judge), f"{alone}, {rounds}"),
        "guarded": (checked, feedback, f"{alone}, {reviewed}, {rounds}"),
        "observe": (observed, feedback, f"{alone}, {reviewed}"),
    }
    talker = policies[contest.conversation]
    if isinstance(talker, RemotePolicy):
        known["served"] = (ServedPattern(talker, sampling), feedback, alone)
    if contest.conversation.startswith(AUDIT):
        known["replay"] = (
            ReplayPattern(audited_collaborations(contest.conversation)),
            feedback,
            alone,
        )
    if contest.guard is not None:
        guard = GuardReviewer(LinearGuard.load(Path(contest.guard)))
        known["guard"] = (safeguard, guard, f"{alone}, guard {identity(contest.guard, None)}")
    if unknown := [name for name in contest.patterns if name not in known]:
        raise InputError(f"there is no pattern {unknown[0]!r}; say {', '.join(known)}")
    players = [(name, *known[name]) for name in contest.patterns]
    return [
        EvaluatedSystem(
            name=name, pattern=pattern, conversation=conversation, reviewer=who, agents=said
        )
        for name, pattern, who, said in players
    ]


def _reviewer(contest: EvaluationConfig, policies: Mapping[str, Policy]) -> tuple[Reviewer, str]:
    """Make who reviews, and say who that is."""
    match contest.feedback:
        case "rules":
            rules = RulesReviewer(load_rulebook())
            return rules, f"feedback {rules.name}"
        case "keywords":
            keywords = load_keywords()
            return keywords, f"feedback {keywords.name}"
        case name:
            wording = load_wording(contest.wording)
            sampling = Sampling(max_new_tokens=contest.max_new_tokens)
            agent = FeedbackAgent(policies[name], wording, sampling)
            return agent, f"feedback {identity(name, contest.server)}"
