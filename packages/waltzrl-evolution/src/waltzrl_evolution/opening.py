"""The composition root of evolution: a run on prompts, with a pool and a log; its best as a bundle.

development -> shown and hidden halves -> EvolutionRun -> best -> held-out prompts -> candidate.toml
"""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from waltzrl.agents.identity import identify_agent
from waltzrl.errors import InputError
from waltzrl.evaluation import Difference, EvaluationRow, evaluate
from waltzrl.evaluation.comparison import compare
from waltzrl.evaluation.data.duplicates import leaks
from waltzrl.evaluation.data.opening import read_sets
from waltzrl.evaluation.gate import MIN_PROMPTS
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.foundation.files import toml_value, write_bytes
from waltzrl.policies import Policy
from waltzrl.policies.opening import local_policy, remote_policy
from waltzrl.records import Prompt
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.writer import LocalLog
from waltzrl.store.database import open_database
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.privacy.opening import open_redaction
from waltzrl_evolution import TrajectoryPool
from waltzrl_evolution.files import CandidateFiles, read_candidate
from waltzrl_evolution.model_writer import ModelWriter
from waltzrl_evolution.operators import Writer
from waltzrl_evolution.pool import CandidateDecision, Trajectory
from waltzrl_evolution.programs import PROGRAM, ProgramSubject
from waltzrl_evolution.rule_writer import RuleWriter
from waltzrl_evolution.rules import RulesSubject, bundle_keys, bundle_text, read_shipped_rules
from waltzrl_evolution.run import (
    CONCURRENCY,
    Budget,
    Cases,
    EvolutionResult,
    EvolutionRun,
    EvolutionSubject,
)
from waltzrl_evolution.wording import WordingSubject, WordingWriter, read_shipped_wording

ALL = "all held-out prompts"
PROMOTED = "promoted"
CANDIDATE = "candidate.toml"
REPORTED = ("asr", "orr", "f1", "capability")
"""The metrics that a report compares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionSettings:
    """What a run works with; its folder resumes with the same settings."""

    development: tuple[str, ...]
    """Sets of labelled prompts; one half of each is shown to writers, the other decides."""
    held_out: tuple[str, ...]
    """Sets that only the baseline and the best candidate meet, at the end."""
    out: Path
    memory: str
    """The URL of the database with the pool."""
    limit: int = 1000
    """The number of prompts of each development set, drawn by a hash."""
    seed: int = 0
    least_compliance: float = 0.0
    """As in `Cases`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionReport:
    """What a run found, and what that is worth on prompts that it did not see."""

    result: EvolutionResult
    metric: str
    """The metric of the score."""
    cases: Cases
    near_duplicates: int
    """The number of development prompts left out because a held-out prompt is nearly the same."""
    held_out: Mapping[str, Sequence[Difference]]
    """The best against the baseline, by set; empty where no candidate was better."""
    promoted: Path | None
    """The recipe of the bundle; None where no candidate was better, or the best lost F1."""

    @property
    def worth(self) -> str:
        """Say in one line whether the gain holds on the held-out prompts."""
        if not self.held_out:
            return "no gain: no candidate that passed the gate scored higher than the baseline"
        changes = [each.change for each in self.held_out[ALL] if each.metric == self.metric]
        if not changes:
            return f"unknown: no held-out prompt measures {self.metric}"
        change = changes[0]
        points, low, high = (
            100 * (each or 0.0) for each in (change.value, change.low, change.high)
        )
        verdict = "gain" if low > 0 else "loss" if high < 0 else "no gain that is not chance"
        return (
            f"{verdict}: {self.metric} on held-out prompts changed by {points:+.1f} points "
            f"({low:+.1f} to {high:+.1f})"
        )


async def run_evolution(
    subject: EvolutionSubject,
    writer: Writer,
    baseline: CandidateFiles,
    settings: EvolutionSettings,
    budget: Budget,
) -> EvolutionReport:
    """Evolve a subject, measure the best candidate on held-out prompts, and prepare its release.

    Raises:
        InputError: prompts are missing or too few, or the folder is of another run.
        StorageError: the database failed.
    """
    cases, held_out, near = read_cases(settings)
    with open_run(subject, writer, cases, settings) as run:
        result = await run.evolve(baseline, budget, seed=settings.seed)
        differences: Mapping[str, Sequence[Difference]] = {}
        promoted = None
        if result.best.id != result.baseline.id:
            before, after = [
                await _evaluate_held_out(run, each, held_out)
                for each in (result.baseline, result.best)
            ]
            differences = _compare_sets(before, after)
            scores = [each for each in differences[ALL] if each.metric == subject.metric]
            if scores and not (scores[0].change.high or 0.0) < 0:
                promoted = promote_trajectory(run, result.best)
    return EvolutionReport(
        result=result,
        metric=subject.metric,
        cases=cases,
        near_duplicates=near,
        held_out=differences,
        promoted=promoted,
    )


async def evolve_rules(
    start: Path | None, settings: EvolutionSettings, budget: Budget
) -> EvolutionReport:
    """Evolve rules, without a model; see `run_evolution`.

    Args:
        start: folder of the files to begin with; None for what a gateway loads.
        settings: of the run.
        budget: of the run.
    """
    baseline = read_shipped_rules() if start is None else read_candidate(start)
    return await run_evolution(RulesSubject(), RuleWriter(), baseline, settings, budget)


async def evolve_wording(
    model: str, server: str | None, start: Path | None, settings: EvolutionSettings, budget: Budget
) -> EvolutionReport:
    """Evolve the prompts with which a model reviews; see `run_evolution`.

    Args:
        model: weights in this process or, with a server, a name.
        server: URL of an OpenAI-compatible server.
        start: folder of the prompts to begin with; None for `labels_first`.
        settings: of the run.
        budget: of the run.
    """
    baseline = read_shipped_wording("labels_first") if start is None else read_candidate(start)
    async with _open_model(model, server) as policy:
        subject = WordingSubject(policy, identify_agent(model, server))
        return await run_evolution(subject, WordingWriter(), baseline, settings, budget)


async def evolve_program(
    model: str,
    server: str | None,
    start: Path,
    settings: EvolutionSettings,
    budget: Budget,
    allow_missing: Sequence[str] = (),
) -> EvolutionReport:
    """Evolve a program with a model that writes; see `run_evolution`.

    Args:
        model: as in `evolve_wording`.
        server: the same.
        start: folder with agent.py.
        settings: of the run.
        budget: of the run.
        allow_missing: layers that the sandbox may lack; see `open_program`.
    """
    subject = ProgramSubject(allow_missing=allow_missing)
    async with _open_model(model, server) as policy:
        writer = ModelWriter(policy, subject.about)
        return await run_evolution(subject, writer, read_candidate(start), settings, budget)


@asynccontextmanager
async def _open_model(model: str, server: str | None) -> AsyncIterator[Policy]:
    if server is None:
        yield local_policy(model)
        return
    async with remote_policy(server, model) as policy:
        yield policy


def read_cases(settings: EvolutionSettings) -> tuple[Cases, list[Prompt], int]:
    """Read the prompts of a run.

    Returns:
        The cases, the held-out prompts, and how many development prompts were left out because
        they are nearly held-out ones.

    Raises:
        InputError: a set is missing or damaged, nothing is labelled, or too little for the gate.
    """
    held_out = [each for each in read_sets(settings.held_out) if each.label or each.answer]
    development = [
        prompt
        for name in settings.development
        for prompt in _draw_distinct(read_sets([name]), settings.limit)
    ]
    leaked = {leak.test.id for leak in leaks(held_out, development)}
    kept = [prompt for prompt in development if prompt.id not in leaked]
    halves: tuple[list[Prompt], list[Prompt]] = ([], [])
    for prompt in kept:
        # Prompts of one cluster stay together, or the hidden half would repeat the shown one.
        belongs_to = prompt.cluster or prompt.request
        # Not by the first byte: `_draw_distinct` sorts by that, so few of a large set share it.
        halves[hashlib.sha256(belongs_to.encode()).digest()[-1] % 2].append(prompt)
    if not held_out or not all(halves):
        raise InputError(
            f"{len(held_out)} held-out and {len(kept)} development prompts have a label or an "
            "answer; give labelled prompts of both kinds"
        )
    labels = Counter(prompt.label for prompt in halves[1])
    harmful, harmless = labels["unsafe"], labels["benign"]
    if min(harmful, harmless) < MIN_PROMPTS:
        raise InputError(
            f"the hidden half has {harmful} harmful and {harmless} harmless prompts; the gate "
            f"needs {MIN_PROMPTS} of each: give larger sets, or raise --limit"
        )
    cases = Cases(
        shown=halves[0],
        hidden=halves[1],
        judge=LabelRefusalJudge(),
        least_compliance=settings.least_compliance,
    )
    return cases, held_out, len(leaked)


@contextmanager
def open_run(
    subject: EvolutionSubject, writer: Writer, cases: Cases, settings: EvolutionSettings
) -> Iterator[EvolutionRun]:
    """Open the pool and the audit log of a run for the duration of the block.

    Raises:
        InputError: the folder cannot be written.
        AuditError: the log was altered, or cannot be written.
        StorageError: the database is unavailable.
    """
    scrub = open_redaction().scrub
    engine = open_database(settings.memory)
    out = settings.out
    name = run_name(out)
    try:
        store = MemoryStore(engine, scrub=scrub)
        log_settings = LogSettings(on_failure="refuse")
        with LocalLog.open(out / "audit", key=out / "audit.key", settings=log_settings) as log:

            def audit(decision: CandidateDecision) -> None:
                log.notice(
                    {
                        "kind": "evolution",
                        "run": name,
                        "candidate": decision.id,
                        "digest": decision.digest,
                        "operator": decision.operator,
                        "parents": " ".join(decision.parents),
                        "ruling": decision.ruling,
                        "reason": scrub(decision.reason),
                    }
                )
                # A decision is stored when this returns, and must be in the log by then.
                log.flush()

            yield EvolutionRun(
                subject,
                writer,
                cases,
                lambda before: TrajectoryPool(store, name, before=before),
                out,
                on_decision=audit,
            )
    finally:
        engine.dispose()


def run_name(out: Path) -> str:
    """Return the name of the run in a folder, in the namespaces of its pool."""
    folder = out.resolve()
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"{folder.name.replace('.', '-')}-{digest}"


def promote_trajectory(run: EvolutionRun, trajectory: Trajectory) -> Path:
    """Write a trajectory's files, and the recipe of a bundle with them, to be released.

    The recipe names the files absolutely: a gateway that reads it may run in another folder.

    Returns:
        The recipe, for `waltzrl release propose`.
    """
    folder = run.folder / PROMOTED
    candidate = run.files(trajectory)
    candidate.write(folder / trajectory.id)
    place = (folder / trajectory.id).absolute()
    match run.subject.name:
        case "rules":
            recipe = bundle_text(*bundle_keys(candidate, place))
        case "wording":
            recipe = f"[feedback]\nwording = {toml_value(str(place))}\n"
        case _:
            recipe = f"[upstream]\nprogram = {toml_value(str(place / PROGRAM))}\n"
    path = folder / CANDIDATE
    write_bytes(path, recipe.encode())
    return path


def held_out_evaluation(out: Path, trajectory: Trajectory) -> Path:
    """Return the folder of a trajectory's evaluation on the held-out prompts."""
    return out / "held-out" / trajectory.id


async def _evaluate_held_out(
    run: EvolutionRun, trajectory: Trajectory, prompts: Sequence[Prompt]
) -> list[EvaluationRow]:
    """Evaluate a trajectory on the held-out prompts."""
    folder = run.folder / trajectory.id / "files"
    into = held_out_evaluation(run.folder, trajectory)
    async with run.subject.open(run.files(trajectory), folder) as system:
        return await evaluate(
            [system], prompts, run.cases.judge, into, CONCURRENCY, lambda _done, _total: None
        )


def _compare_sets(
    before: Sequence[EvaluationRow], after: Sequence[EvaluationRow]
) -> dict[str, list[Difference]]:
    """Compare two runs on all prompts, and on those of each set."""
    sources = {
        row.case: row.judged.collaboration.prompt.source for row in before if row.judged is not None
    }
    compared = {}
    for source in dict.fromkeys(sources.values()):
        first, second = (
            [row for row in rows if sources.get(row.case) == source] for rows in (before, after)
        )
        compared[source] = _select_reported(compare(first, second))
    return compared | {ALL: _select_reported(compare(before, after))}


def _draw_distinct(prompts: Sequence[Prompt], most: int) -> list[Prompt]:
    """Return prompts with a label or an answer, one of several alike, drawn by a hash."""
    distinct = {each.request: each for each in reversed(prompts) if each.label or each.answer}
    hashed = sorted(distinct, key=lambda text: hashlib.sha256(text.encode()).hexdigest())
    return [distinct[text] for text in hashed[:most]]


def _select_reported(differences: Sequence[Difference]) -> list[Difference]:
    return [each for each in differences if each.metric in REPORTED]
