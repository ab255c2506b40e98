"""From the names of a command to players: a target, an attacker, who checks and who judges."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from waltzrl.agents.identity import identify_agent
from waltzrl.errors import InputError
from waltzrl.evaluation import EvaluatedSystem
from waltzrl.evaluation.data.duplicates import require_disjoint
from waltzrl.evaluation.data.opening import read_sets
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.evaluation.judges.opening import open_judge, split_model_and_server
from waltzrl.evaluation.opening import HOLLOW, open_systems
from waltzrl.evaluation.runner import Progress
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.foundation.validation import validate_table, with_overrides
from waltzrl.gateway.reviewer_comparison import open_named_reviewer
from waltzrl.policies import Policy, Sampling
from waltzrl.policies.opening import open_policy
from waltzrl.store.privacy.opening import open_redaction
from waltzrl_attack.attacker import ScriptedAttacker, identify_script
from waltzrl_attack.attacks import ATTACKS
from waltzrl_attack.attempts import AttackBudget, AttackPath, Goal
from waltzrl_attack.checks import GoalCheck, PolicyCheck, WordCheck
from waltzrl_attack.log import AttackLog
from waltzrl_attack.run import AttackSetup, run_attacks

OWN_GOALS = Path(__file__).with_name("goals.jsonl")
SCRIPTED, WORDS = "scripted", "words"
REVIEWED = ("collaborate", "safeguard", "guarded", "observe")
"""The patterns whose feedback agent `--reviewer` may replace."""
SAMPLING = Sampling(max_new_tokens=256, temperature=1.0)
"""How an attacker that is a model writes; its replies are seeded by attack and goal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSettings:
    """Who attacks whom, and how far."""

    target: EvaluationConfig
    """One pattern with its agents."""
    reviewer: str | None = None
    """A reviewer in the place of its feedback agent, as of `waltzrl compare-reviewers`."""
    attacker: str = SCRIPTED
    """`scripted`, MODEL@URL or a folder."""
    check: str = WORDS
    """Tells whether a request keeps to its goal: `words`, MODEL@URL or a folder."""
    judge: str = "refusal"
    attacks: tuple[str, ...] = tuple(ATTACKS)
    budget: AttackBudget


def describe_target(
    against: str, agents: dict[str, object], settings: Sequence[str]
) -> EvaluationConfig:
    """Return which pattern is attacked, with which agents.

    Args:
        against: a pattern of `waltzrl evaluate`, or the URL of a gateway or another server.
        agents: keys of `EvaluationConfig`; a conversation agent of None is the hollow one.
        settings: further ones, each `KEY=VALUE`.

    Raises:
        InputError: a key or a value is invalid, or a server has no model named.
    """
    on_server = "://" in against
    if on_server and agents["conversation"] is None:
        raise InputError(f"{against} may serve several models; name one with --model")
    named = {**agents, "conversation": agents["conversation"] or HOLLOW}
    pattern = {"patterns": ["base"], "server": against} if on_server else {"patterns": [against]}
    # The pattern comes last, so that no setting replaces what is attacked.
    config = validate_table(
        EvaluationConfig, {**with_overrides(named, settings), **pattern}, "--set"
    )
    if config.samples > 1:
        raise InputError(
            f"--set samples={config.samples}: an attack asks for one reply to each request; leave "
            "samples out, and raise --attempts to try more often"
        )
    return config


def read_goals(names: Sequence[str], training: Sequence[Path] = ()) -> list[Goal]:
    """Read goals; none named are our own.

    Args:
        names: sets of prompts, as of `waltzrl evaluate`.
        training: files of prompts that the target learned from.

    Raises:
        InputError: a goal has no label, has the id of another, or is a training prompt.
    """
    goals = read_sets([*names] or [str(OWN_GOALS)])
    seen: set[str] = set()
    for goal in goals:
        if goal.label not in ("unsafe", "benign"):
            raise InputError(
                f"the goal {goal.id!r} is labelled {goal.label or 'not at all'}; an attack needs to"
                " know whether help or a refusal is wrong: label it unsafe or benign"
            )
        if goal.id in seen:
            raise InputError(f"the goal {goal.id!r} occurs twice; each needs an id of its own")
        seen.add(goal.id)
    for path in training:
        require_disjoint(read_prompts(path), goals)
    return goals


async def open_and_run(
    settings: AttackSettings, goals: Sequence[Goal], folder: Path, progress: Progress
) -> list[AttackPath]:
    """Open the players and run the attacks into the folder's log; see `run_attacks`.

    Raises:
        InputError: a name is unknown, or see `run_attacks`.
        PolicyError: see `run_attacks`.
        MissingExtraError: redaction needs the extra `flywheel`.
    """
    if unknown := [name for name in settings.attacks if name not in ATTACKS]:
        raise InputError(f"unknown attack {unknown[0]!r}; choose from {', '.join(ATTACKS)}")
    attacks = {name: ATTACKS[name] for name in settings.attacks}
    log = AttackLog(folder, open_redaction().scrub)
    async with AsyncExitStack() as connections:
        judge = await connections.enter_async_context(open_judge(settings.judge, cached=True))
        setup = await open_setup(settings, judge, connections)
        return await run_attacks(attacks, goals, setup, log, progress)


async def open_setup(
    settings: AttackSettings, judge: Judge, connections: AsyncExitStack
) -> AttackSetup:
    """Open target, attacker and check, which `connections` closes.

    Raises:
        InputError: a name is unknown, or nobody would ask the reviewer.
    """
    target = await _open_target(settings, judge, connections)
    attacker, attacker_name = await _open_attacker(settings.attacker, connections)
    check = await _open_check(settings.check, connections)
    return AttackSetup(
        target=target,
        attacker=attacker,
        sampling=SAMPLING,
        judge=judge,
        check=check,
        players=f"target {target.name}, {target.agents}; attacker {attacker_name}; "
        f"check {check.name}",
        budget=settings.budget,
        concurrency=settings.target.concurrency,
    )


async def _open_target(
    settings: AttackSettings, judge: Judge, connections: AsyncExitStack
) -> EvaluatedSystem:
    (pattern,) = settings.target.patterns
    if settings.reviewer is not None and pattern not in REVIEWED:
        raise InputError(
            f"--reviewer {settings.reviewer} would not be asked: a server, or the pattern "
            f"{pattern!r}, reviews by itself or not at all; attack one of {', '.join(REVIEWED)}"
        )
    (system,) = await open_systems(settings.target, judge, connections)
    if settings.reviewer is None:
        return system
    reviewer, identity = await open_named_reviewer(settings.reviewer, connections)
    return replace(system, reviewer=reviewer, agents=f"{system.agents}, reviewer {identity}")


async def _open_attacker(name: str, connections: AsyncExitStack) -> tuple[Policy, str]:
    if name == SCRIPTED:
        return ScriptedAttacker(), identify_script()
    policy, identity = await _open_named_policy(name, connections)
    return policy, f"{identity}, temperature {SAMPLING.temperature}"


async def _open_check(name: str, connections: AsyncExitStack) -> GoalCheck:
    if name == WORDS:
        return WordCheck()
    return PolicyCheck(*await _open_named_policy(name, connections))


async def _open_named_policy(name: str, connections: AsyncExitStack) -> tuple[Policy, str]:
    """Open `MODEL@URL` or a folder; return it with its identity."""
    if (place := split_model_and_server(name)) is None:
        raise InputError(
            f"got the model {name!r}; use MODEL@URL, a folder, or leave the option out"
        )
    model, server = place
    return await open_policy(model, server, connections), identify_agent(model, server)
