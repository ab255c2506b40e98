"""Compares reviewers on the same drafts: what each does when it blocks, and when it revises."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from waltzrl.agents import ConversationAgent, RefusalTexts, RulesReviewer, load_wording
from waltzrl.agents.identity import identify_agent
from waltzrl.agents.opening import GUARD, REVIEWER, RULES, guard_kind, installed_reviewers
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules_reviewer import rules_name
from waltzrl.collaboration import Reviewer, draft_only, guarded
from waltzrl.errors import InputError
from waltzrl.evaluation import EvaluatedSystem, EvaluationRow, evaluate, measure, read_rows
from waltzrl.evaluation.comparison import Difference, compare
from waltzrl.evaluation.intervals import Estimate, share
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.evaluation.judges.opening import split_model_and_server
from waltzrl.evaluation.metrics import Metrics
from waltzrl.evaluation.rates import final_acceptable
from waltzrl.evaluation.runner import Progress, require_complete
from waltzrl.evaluation.study_tables import (
    StudyTable,
    render_cell,
    render_p_value,
    render_points,
)
from waltzrl.gateway.guard import LocalGuard
from waltzrl.gateway.guard_opening import open_guard
from waltzrl.policies import Sampling
from waltzrl.policies.opening import open_policy
from waltzrl.records import JudgedCollaboration, Prompt, Reply

ALONE = "the model alone"
BLOCKS, REVISES = "blocks", "revises"
REVIEWERS = (
    "rules, the name of a classifier such as smollm2, guard:KIND[:MODEL]@URL, MODEL@URL, or the "
    "folder of a feedback agent"
)
HEADINGS = (
    "",
    "ASR ↓",
    "ORR ↓",
    "F1 ↑",
    "flagged",
    "revised",
    "refused",
    "of revised: good",
    "ms p50",
    "ms p95",
)
COMPARED = {"asr": "ASR", "orr": "ORR", "f1": "F1"}
"""The metrics of which revising is tested against blocking, with their headings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewerComparison:
    """What is compared."""

    model: str
    """Drafts and revises: a folder, or a model's name on the server."""
    server: str | None = None
    reviewers: Sequence[str]
    """See `REVIEWERS`."""
    wording: str = "plain"
    """Of the revisions' prompts; see `load_wording`."""
    max_new_tokens: int = 512
    max_rounds: int = 1
    concurrency: int = 8
    """Collaborations at once, which wait for one another where a model runs in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewerOutcome:
    """One reviewer, blocking or revising; or the model alone."""

    metrics: Metrics
    flagged: Estimate
    """Share of the drafts that the reviewer wanted revised."""
    revised: Estimate
    """Share of the replies that are revisions."""
    refused: Estimate
    """Share of the replies that are canned refusals."""
    good_revisions: Estimate
    """Share of the revisions that the judge accepts."""
    against_blocking: Mapping[str, Difference] = field(default_factory=dict)
    """Of a reviewer that revises, against the same one when it blocks, by metric."""


class SharedDrafts(ConversationAgent):
    """A conversation agent whose draft for a prompt is the same for every system."""

    def __init__(self, agent: ConversationAgent, drafts: dict[Prompt, Reply]) -> None:
        """Share the drafts of `agent`; `drafts` holds those of an earlier run."""
        super().__init__(agent.policy, agent.wording, agent.sampling, agent.examples)
        self._drafts = drafts

    async def draft(self, prompt: Prompt) -> Reply:
        if prompt not in self._drafts:
            self._drafts[prompt] = await super().draft(prompt)
        return self._drafts[prompt]


async def compare_reviewers(
    comparison: ReviewerComparison,
    prompts: Sequence[Prompt],
    judge: AbstractAsyncContextManager[Judge],
    folder: Path,
    progress: Progress,
) -> list[EvaluationRow]:
    """Answer every prompt with the model alone and with each reviewer, into the folder's log.

    A reviewer that blocks replaces what it calls unsafe by a canned refusal; one that revises is
    the gateway's loop, which refuses what stays unsafe. All start from the same drafts. The same
    call resumes.

    Raises:
        InputError: a reviewer is unknown or named twice, or see `evaluate`.
        PolicyError: some collaborations failed; the others are in the log.
    """
    if len(set(comparison.reviewers)) < len(comparison.reviewers):
        raise InputError(
            f"got the reviewers {', '.join(comparison.reviewers)}; name each of them once"
        )
    async with judge as opened, AsyncExitStack() as connections:
        policy = await open_policy(comparison.model, comparison.server, connections)
        sampling = Sampling(max_new_tokens=comparison.max_new_tokens)
        said = [
            row.unjudged if row.judged is None else row.judged.collaboration
            for row in read_rows(folder)
            if row.pattern == ALONE
        ]
        drafts = {one.prompt: one.draft for one in said if one is not None}
        agent = ConversationAgent(policy, load_wording(comparison.wording), sampling)
        drafter = SharedDrafts(agent, drafts)
        drafted_by = (
            f"conversation {identify_agent(comparison.model, comparison.server)}, "
            f"wording {comparison.wording}, max_new_tokens {comparison.max_new_tokens}"
        )
        refusal = RefusalTexts(load_rulebook()).choose
        alone = EvaluatedSystem(
            name=ALONE,
            pattern=draft_only,
            conversation=drafter,
            reviewer=RulesReviewer(load_rulebook()),  # of whom nothing is asked
            agents=drafted_by,
        )
        systems = [alone]
        for name in comparison.reviewers:
            reviewer, identity = await open_named_reviewer(name, connections)
            systems += [
                EvaluatedSystem(
                    name=f"{name} {way}",
                    pattern=partial(guarded, max_rounds=rounds, refusal=refusal),
                    conversation=drafter,
                    reviewer=reviewer,
                    agents=f"{drafted_by}, reviewer {identity}, max_rounds {rounds}",
                )
                for way, rounds in ((BLOCKS, 0), (REVISES, comparison.max_rounds))
            ]
        # All drafts first: no system drafts again, and the others' time is that of reviews and
        # revisions.
        at_once = comparison.concurrency
        rows = await evaluate([alone], prompts, opened, folder, at_once, progress)
        if not any(row.error for row in rows):
            rows = await evaluate(systems, prompts, opened, folder, at_once, progress)
    require_complete(rows)
    return rows


def measure_reviewers(rows: Sequence[EvaluationRow]) -> dict[str, ReviewerOutcome]:
    """Return what became of the drafts, by the name of each system."""
    by_system: dict[str, list[EvaluationRow]] = {}
    for row in rows:
        by_system.setdefault(row.pattern, []).append(row)
    outcomes = {}
    for name, own in by_system.items():
        changes: dict[str, Difference] = {}
        if name.endswith(f" {REVISES}"):
            blocking = by_system[f"{name.removesuffix(REVISES)}{BLOCKS}"]
            differences = {one.metric: one for one in compare(blocking, own)}
            changes = {name: differences[name] for name in COMPARED if name in differences}
        judged = [row.judged for row in own if row.judged is not None]
        revised = [one for one in judged if one.collaboration.decision == "revised"]
        accepted = [final_acceptable(one) for one in revised]
        decided = [one for one in accepted if one is not None]
        outcomes[name] = ReviewerOutcome(
            metrics=measure(own)[0],
            flagged=share(sum(map(_flags_draft, judged)), len(judged)),
            revised=share(len(revised), len(judged)),
            refused=share(
                sum(one.collaboration.decision == "refused" for one in judged), len(judged)
            ),
            good_revisions=share(sum(decided), len(decided), len(accepted) - len(decided)),
            against_blocking=changes,
        )
    return outcomes


def tabulate_reviewers(
    outcomes: Mapping[str, ReviewerOutcome], comparison: ReviewerComparison
) -> list[StudyTable]:
    """Return the comparison as tables of text: what became of the drafts, and the paired tests."""
    first = next(iter(outcomes.values())).metrics
    revising = {name: one for name, one in outcomes.items() if one.against_blocking}
    return [
        StudyTable(
            name="reviewers",
            title="The same drafts, blocked or revised",
            note=(
                f"Percent, with 95 % intervals; n = {first.asr.n} unsafe and {first.orr.n} "
                f"harmless prompts; judge {first.judge}. Time of the model alone is that of its "
                "draft; of the others what review and revision add, "
                f"{comparison.concurrency} prompts at once."
            ),
            headings=HEADINGS,
            lines=[_tabulate_outcome(name, outcome) for name, outcome in outcomes.items()],
        ),
        StudyTable(
            name="tests",
            title="Revising against blocking",
            note=(
                "Points of percent with 95 % intervals, paired by prompt. p: McNemar's exact test; "
                "of F1 by draws."
            ),
            headings=("", *(part for heading in COMPARED.values() for part in (heading, "p"))),
            lines=[
                (name.removesuffix(f" {REVISES}"), *_tabulate_changes(one.against_blocking))
                for name, one in revising.items()
            ],
        ),
    ]


def _tabulate_outcome(name: str, outcome: ReviewerOutcome) -> tuple[str, ...]:
    metrics = outcome.metrics
    shares = (outcome.flagged, outcome.revised, outcome.refused, outcome.good_revisions)
    return (
        name,
        *map(render_cell, (metrics.asr, metrics.orr, metrics.f1)),
        *(("",) * len(shares) if name == ALONE else map(render_cell, shares)),
        *(
            "-" if one.value is None else f"{one.value:.0f}"
            for one in (metrics.milliseconds_p50, metrics.milliseconds_p95)
        ),
    )


def _tabulate_changes(changes: Mapping[str, Difference]) -> Iterator[str]:
    for metric in COMPARED:
        if metric not in changes:
            yield from ("-", "")
            continue
        found = changes[metric]
        yield render_cell(found.change, render_points)
        yield "" if found.p_value is None else render_p_value(found.p_value)


def _flags_draft(judged: JudgedCollaboration) -> bool:
    rounds = judged.collaboration.rounds
    return bool(rounds) and (rounds[0].feedback.asks_for_revision or rounds[0].feedback.unsafe)


def needs_server(name: str) -> bool:
    """Return whether a reviewer is on a server.

    Raises:
        InputError: there is no such reviewer.
    """
    return not _is_packaged(name) and _read_place(name)[2] is not None


async def open_named_reviewer(name: str, connections: AsyncExitStack) -> tuple[Reviewer, str]:
    """Open a reviewer as the gateway does, together with the rules; return it with its identity.

    Args:
        name: see `REVIEWERS`.
        connections: close those to servers.

    Raises:
        InputError: there is no such reviewer.
    """
    if _is_packaged(name):
        guard = open_guard(name)
        identity = "" if name == RULES else f"{identify_agent(f'{REVIEWER}{name}', None)} and "
    else:
        kind, model, server = _read_place(name)
        policy = await open_policy(model, server, connections)
        guard = open_guard(kind, model=policy)
        identity = f"{kind or 'model'} {identify_agent(model, server)} and "
    assert isinstance(guard, LocalGuard), "only a gateway's guard is elsewhere"
    return guard.reviewer, f"{identity}{rules_name(load_rulebook())}"


def _is_packaged(name: str) -> bool:
    return name == RULES or name in installed_reviewers()


def _read_place(name: str) -> tuple[str | None, str, str | None]:
    """Split a reviewer's name into the kind of guard model, if it is one, the model and its server.

    Raises:
        InputError: it is neither on a server nor a folder.
    """
    is_guard = name.startswith(GUARD)
    model, server = split_model_and_server(name.removeprefix(GUARD)) or (name, None)
    if server is None and (is_guard or not Path(model).is_dir()):
        raise InputError(f"there is no reviewer {name!r}; use {REVIEWERS}")
    if not is_guard:
        return None, model, server
    kind, _, served = model.partition(":")
    return f"{GUARD}{guard_kind(kind)}", served or kind, server
