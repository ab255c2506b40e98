"""The composition root of evaluation: names of patterns and agents become systems to evaluate."""

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from waltzrl.agents import (
    ConversationAgent,
    FeedbackAgent,
    HybridReviewer,
    RulesReviewer,
    load_wording,
    wording_name,
)
from waltzrl.agents.calibration import UNCALIBRATED
from waltzrl.agents.coaching import Coach, ExampleSource
from waltzrl.agents.exports import read_pair, verify_export
from waltzrl.agents.identity import calibration_of, identify_agent, name_challenges
from waltzrl.agents.opening import FEEDBACK_AGENT, REVIEWER, find_pair, open_reviewer
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules_reviewer import LanguageReviewer
from waltzrl.collaboration import Pattern, Reviewer, collaborate, draft_only, guarded, observed
from waltzrl.errors import InputError
from waltzrl.evaluation import EvaluatedSystem, EvaluationRow, evaluate
from waltzrl.evaluation.data.opening import AUDIT, read_audited_collaborations
from waltzrl.evaluation.harm import HollowPolicy
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.evaluation.judges.saved import read_replies
from waltzrl.evaluation.patterns import (
    OracleReviewer,
    ReplayPattern,
    ServedPattern,
    best_of_3,
    load_guards,
    load_keywords,
    safeguard,
)
from waltzrl.evaluation.runner import Progress, require_complete
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl.foundation.validation import Table
from waltzrl.policies import Policy, RemotePolicy, Sampling, SavedPolicy
from waltzrl.policies.opening import open_policy
from waltzrl.records import Prompt

WITHOUT_WEIGHTS = {"rules", "keywords"}
"""Reviewers without a policy: our rulebook, and the baseline of a plain keyword list."""
SAVED = "saved:"
HOLLOW = "hollow"
"""The conversation agent without weights; see `HollowPolicy`."""
AS_SERVED = {"guarded", "observe"}
"""The patterns of a gateway, in which rules review beside a feedback agent."""
BEST = "best-of-3"
"""The one pattern that samples: drafts at temperature 0 would all be the same."""


def name_agents(
    conversation: str | None, feedback: str | None, pair: Path | None, server: str | None
) -> Table:
    """Return the keys of an `EvaluationConfig` that say who drafts, reviews and revises.

    Args:
        conversation: drafts and revises; reviews too, where nothing else does.
        feedback: reviews; `feedback-agent` is the pair's own, where the pair names another.
        pair: in place of the conversation agent: a folder that `waltzrl export` wrote, or the name
            of an installed package's pair. All is as `waltzrl serve --pair` opens it.
        server: where the agents are, in place of this process; a pair is never there.

    Raises:
        InputError: there is no conversation agent, or two, or no such pair here, or no pair whose
            own agent reviews.
        CheckpointError: the pair is incomplete or altered.
    """
    if (conversation is None) == (pair is None):
        got = "neither" if pair is None else "both"
        raise InputError(f"got {got} of --conversation and --pair; need one of them")
    if pair is None:
        if feedback == FEEDBACK_AGENT:
            raise InputError(f"--feedback {feedback} is a pair's own; give --pair as well")
        agents: Table = {"conversation": conversation, "feedback": feedback or conversation}
        return agents | {"server": server}
    if server is not None:
        raise InputError(f"got --pair and --server {server}; a pair runs in this process")
    folder = find_pair(pair)
    verify_export(folder)
    exported = read_pair(folder)
    named = exported.reviewer
    if named not in (None, *WITHOUT_WEIGHTS):
        named = f"{REVIEWER}{named}"
    reviewer = feedback or named or FEEDBACK_AGENT
    keys = {"conversation": "max_new_tokens", "feedback": "feedback_max_new_tokens"}
    return {
        "conversation": exported.conversation,
        "feedback": exported.feedback if reviewer == FEEDBACK_AGENT else reviewer,
        "reviser": exported.reviser,
        "wording": exported.wording,
        **{keys[role]: limit for role, limit in exported.limits.items()},
    }


async def run_evaluation(
    config: EvaluationConfig,
    prompts: Sequence[Prompt],
    judge: Judge,
    folder: Path,
    progress: Progress,
) -> list[EvaluationRow]:
    """Run every pattern on every prompt, into the folder's log; see `evaluate`.

    Raises:
        InputError: a pattern or an agent is unknown, there is nothing to do, or the folder
            cannot be written.
        PolicyError: some collaborations failed; the others are in the log.
    """
    if config.samples > 1 and not config.temperature:
        raise InputError(
            f"samples = {config.samples} with temperature 0 are all alike; set a temperature such "
            "as 1.0, or samples = 1"
        )
    async with AsyncExitStack() as connections:
        systems = await open_systems(config, judge, connections)
        rows = await evaluate(systems, prompts, judge, folder, config.concurrency, progress)
    require_complete(rows)
    return rows


async def open_systems(
    config: EvaluationConfig, judge: Judge, connections: AsyncExitStack
) -> list[EvaluatedSystem]:
    """Open the patterns with their agents, which `connections` closes.

    Raises:
        InputError: a pattern or an agent is unknown.
    """
    policies = await _open_policies(config, connections)
    coach = None
    if config.examples is not None:
        from waltzrl.store.memory.opening import existing_memory

        memory = connections.enter_context(existing_memory(config.examples))
        coach = Coach(memory, consented=True)
    return _make_systems(config, policies, judge, coach)


async def _open_policies(
    config: EvaluationConfig, connections: AsyncExitStack
) -> dict[str, Policy]:
    """Open the policies, by name; two agents of one name share one.

    Raises:
        InputError: what drafts or revises can only review.
    """
    policies: dict[str, Policy] = {}
    writers = {config.conversation, config.reviser or config.conversation}
    if reviewing := sorted(filter(_only_reviews, writers)):
        raise InputError(f"{reviewing[0]} only reviews; name a model that drafts and revises")
    reviewers = set() if _only_reviews(config.feedback) else {config.feedback}
    for name in writers | reviewers:
        if name.startswith(SAVED):
            policies[name] = SavedPolicy(read_replies(Path(name.removeprefix(SAVED))))
        elif name.startswith(AUDIT):
            # It has no replies: the only pattern for an audit log, `replay`, asks no policy.
            policies[name] = SavedPolicy({})
        elif name == HOLLOW and config.server is None:
            policies[name] = HollowPolicy()
        else:
            policies[name] = await open_policy(
                name, config.server, connections, concurrency=config.concurrency
            )
    return policies


def _only_reviews(name: str) -> bool:
    return name in WITHOUT_WEIGHTS or name.startswith(REVIEWER)


def _make_systems(
    config: EvaluationConfig,
    policies: Mapping[str, Policy],
    judge: Judge,
    coach: ExampleSource | None,
) -> list[EvaluatedSystem]:
    wording = load_wording(config.wording)
    sampling = Sampling(max_new_tokens=config.max_new_tokens, temperature=config.temperature)
    own = coach if "conversation" in config.examples_for else None
    reviewers = coach if "feedback" in config.examples_for else None
    reviser = None if config.reviser is None else policies[config.reviser]
    conversation = ConversationAgent(policies[config.conversation], wording, sampling, own, reviser)
    feedback, feedback_name = _make_reviewer(config, policies, reviewers)
    served, served_name = feedback, feedback_name
    if isinstance(feedback, FeedbackAgent) and not AS_SERVED.isdisjoint(config.patterns):
        agent = _with_probabilities(feedback)
        served, served_name = _add_rules(agent, config, config.server, feedback_name)
    if config.calibration is not None and not isinstance(served, HybridReviewer | LanguageReviewer):
        raise InputError(
            f"calibration: got {config.calibration}, and nothing that is evaluated takes one; it "
            f"is for a model that reviews in the patterns {' and '.join(sorted(AS_SERVED))}"
        )
    rounds = f"max_rounds {config.max_rounds}"
    loop: Pattern = partial(collaborate, max_rounds=config.max_rounds)
    guarded_loop: Pattern = partial(guarded, max_rounds=config.max_rounds)
    # what each pattern depends on: a log by other agents or settings is not resumed
    alone = (
        f"conversation {identify_agent(config.conversation, config.server)}, "
        f"wording {wording_name(config.wording)}, max_new_tokens {config.max_new_tokens}"
        + (f", temperature {config.temperature}" if config.temperature else "")
        + (f", examples of {config.examples} for {', '.join(config.examples_for)}" if coach else "")
    )
    if config.reviser is not None:
        rounds += f", reviser {identify_agent(config.reviser, config.server)}"
    best_name = f"{alone}, {feedback_name}, temperature 1"
    known: dict[str, tuple[Pattern, Reviewer, str]] = {
        "base": (draft_only, feedback, alone),
        "collaborate": (loop, feedback, f"{alone}, {feedback_name}, {rounds}"),
        "safeguard": (safeguard, feedback, f"{alone}, {feedback_name}"),
        "oracle": (loop, OracleReviewer(judge), f"{alone}, {rounds}"),
        "guarded": (guarded_loop, served, f"{alone}, {served_name}, {rounds}"),
        "observe": (observed, served, f"{alone}, {served_name}"),
        BEST: (best_of_3, _with_probabilities(feedback), best_name),
    }
    policy = policies[config.conversation]
    if isinstance(policy, RemotePolicy):
        known["served"] = (ServedPattern(policy, sampling), feedback, alone)
    if config.conversation.startswith(AUDIT):
        known["replay"] = (
            ReplayPattern(read_audited_collaborations(config.conversation)),
            feedback,
            alone,
        )
    if config.guard is not None:
        guard = load_guards(Path(config.guard))
        guard_name = f"guard {identify_agent(config.guard, None)}"
        known["guard"] = (safeguard, guard, f"{alone}, {guard_name}")
        known["guard-loop"] = (loop, guard, f"{alone}, {guard_name}, {rounds}")
    if unknown := [name for name in config.patterns if name not in known]:
        raise InputError(f"unknown pattern {unknown[0]!r}; choose from {', '.join(known)}")
    varied = ConversationAgent(policy, wording, replace(sampling, temperature=1.0), own)
    return [
        EvaluatedSystem(
            name=name,
            pattern=pattern,
            conversation=varied if name == BEST else conversation,
            reviewer=reviewer,
            samples=config.samples,
            agents=agents,
        )
        for name in config.patterns
        for pattern, reviewer, agents in [known[name]]
    ]


def _with_probabilities(reviewer: Reviewer) -> Reviewer:
    """Return a reviewer that gives its labels' probabilities, where it is a policy."""
    if not isinstance(reviewer, FeedbackAgent):
        return reviewer
    return FeedbackAgent(
        reviewer.policy,
        reviewer.wording,
        reviewer.sampling,
        formatted=True,
        examples=reviewer.examples,
    )


def _make_reviewer(
    config: EvaluationConfig, policies: Mapping[str, Policy], coach: ExampleSource | None
) -> tuple[Reviewer, str]:
    """Make the reviewer; return it with its name for the log."""
    match config.feedback:
        case "rules":
            rules = RulesReviewer(load_rulebook())
            return rules, f"feedback {rules.name}"
        case "keywords":
            keywords = load_keywords()
            return keywords, f"feedback {keywords.name}"
        case name if name.startswith(REVIEWER):
            return _open_classifier(config)
        case name:
            wording = load_wording(config.wording)
            limit = config.feedback_max_new_tokens
            sampling = Sampling(max_new_tokens=limit or config.max_new_tokens)
            agent = FeedbackAgent(policies[name], wording, sampling, examples=coach)
            own = "" if limit is None else f", its max_new_tokens {limit}"
            return agent, f"feedback {identify_agent(name, config.server)}{own}"


def _open_classifier(config: EvaluationConfig) -> tuple[Reviewer, str]:
    """Open a packaged classifier, which always has the rules beside it."""
    name = config.feedback
    classifier = open_reviewer(name.removeprefix(REVIEWER))
    both, told = _add_rules(classifier, config, None, f"feedback {identify_agent(name, None)}")
    return LanguageReviewer(both, classifier.languages), told


def _add_rules(
    model: Reviewer, config: EvaluationConfig, server: str | None, name: str
) -> tuple[Reviewer, str]:
    """Put the rules beside a model, with its calibration, as a gateway does.

    Returns:
        the reviewer, and its name for the log.

    Raises:
        InputError: the calibration is missing or damaged, or it is of another reviewer.
    """
    calibration = calibration_of(config.feedback, server, config.wording, config.calibration)
    rules = RulesReviewer(load_rulebook())
    both = HybridReviewer(model, rules, calibration=calibration or UNCALIBRATED)
    return both, f"{name}, {rules.name}, {name_challenges(calibration)}"
