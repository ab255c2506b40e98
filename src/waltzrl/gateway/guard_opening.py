"""Make a guard: from rules, a model, an exported pair or a gateway."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, cast

import msgspec

from waltzrl.agents import (
    ConversationAgent,
    FeedbackAgent,
    HybridReviewer,
    RefusalTexts,
    RulesReviewer,
    load_wording,
)
from waltzrl.agents.calibration import UNCALIBRATED, ReviewerCalibration, load_calibration
from waltzrl.agents.exports import ExportedPair, read_pair, verify_export
from waltzrl.agents.identity import calibration_of
from waltzrl.agents.opening import (
    FEEDBACK_AGENT,
    GUARD,
    REVIEWER,
    RULES,
    find_pair,
    guard_kind,
    open_reviewer,
)
from waltzrl.agents.rules import DEFAULT_PACKS, load_rulebook
from waltzrl.agents.rules_reviewer import LanguageReviewer, OnOtherLanguage
from waltzrl.collaboration import Reviewer, guarded
from waltzrl.errors import InputError
from waltzrl.evaluation.judges.formats import FORMATS, JudgeFormat
from waltzrl.evaluation.judges.guard_model_reviewer import GuardModelReviewer
from waltzrl.gateway.guard import LONGEST_REPLY, GatewayGuard, Guard, LocalGuard
from waltzrl.policies import GuardPolicy, Policy, RemotePolicy, Sampling
from waltzrl.policies.opening import local_policy, require_local_policies

NEEDED = {
    "threshold": "a number from 0 to 1",
    "max_rounds": "a whole number, 1 or more",
    "rules": 'a tuple of names of rule packs or paths, such as ("crime", "privacy")',
    "rules_flag_overrefusals": "True or False",
    "calibration": "the path of a file of waltzrl calibrate, or None",
    "false_alarms": "a number between 0 and 1, or None",
    "wording": "plain, short, labels_first, tiny, a folder, or None",
    "max_new_tokens": "a whole number, 1 or more, or None",
    "on_other_language": "serve or refuse",
    "allow_calls": 'a tuple of names of tools or rules, such as ("terraform",)',
}
"""The values that each of the settings takes, for errors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardSettings:
    """How a guard in this process decides; the defaults are the gateway's."""

    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.7
    """0 to 1: a reply whose safety, 1 - risk, is below it is unsafe; higher flags more."""
    max_rounds: Annotated[int, msgspec.Meta(ge=1)] = 1
    """Revisions at most; 1 or more."""
    rules: tuple[str, ...] = DEFAULT_PACKS
    """Names of rule packs of the package, or paths of TOML files."""
    rules_flag_overrefusals: bool = False
    """Without a model: flag a refusal where the rules find nothing in the request. They often
    find nothing in a harmful one, and then ask for an answer to it."""
    allow_calls: tuple[str, ...] = ()
    """Tool calls that the rules for them let pass: `TOOL`, `PACK/RULE`, or `TOOL:PACK/RULE`."""
    on_other_language: OnOtherLanguage = "serve"
    """If a request is in a language that the reviewer does not read, as rules and classifiers read
    only English: go by what it says of the reply, or refuse. `Feedback.failure` names it."""
    calibration: str | None = None
    """File that `waltzrl calibrate` wrote, which says which refusals the model may challenge. None
    is the pair's own; without one the model challenges none."""
    false_alarms: Annotated[float, msgspec.Meta(gt=0, lt=1)] | None = None
    """Of a classifier: the share of good replies, between 0 and 1, that may be flagged: a point of
    its curve. None is the point that its package serves with."""
    wording: str | None = None
    """Prompts of the agents: plain, labels_first, tiny, or a folder, see `load_wording`. None is
    what a pair was trained with, as its export says (plain, if it does not), and labels_first for
    a model, which need not have been trained to review."""
    max_new_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Longest draft, revision or feedback of a model, in tokens. None is what a pair was trained
    with, as its export says, and otherwise 1024; a model of this process also stops where its
    context ends."""

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = _convert_paths(getattr(self, setting.name))
            try:
                # The dataclass is frozen, and callers may give paths and lists.
                object.__setattr__(self, setting.name, msgspec.convert(value, setting.type))
            except msgspec.ValidationError:
                raise InputError(
                    f"GuardSettings: {setting.name}: got {value!r}; need {NEEDED[setting.name]}"
                ) from None


def _convert_paths(value: object) -> object:
    """Return a path as its text, and so each of a list or a tuple."""
    if isinstance(value, list | tuple):
        return tuple(map(_convert_paths, value))
    return str(value) if isinstance(value, PurePath) else value


def open_guard(
    reviewer: str | None = None,
    *,
    model: Policy | None = None,
    pair: str | Path | None = None,
    gateway: RemotePolicy | None = None,
    upstream: Policy | None = None,
    settings: GuardSettings | None = None,
) -> Guard:
    """Open a guard; without arguments, rules review in microseconds, without a model.

    Args:
        reviewer: a classifier that a package provides, by name: `open_guard("smollm2")` with the
            package waltzrl-smollm2. It reviews together with the rules. Loading takes seconds.
            `rules` is the rules alone, as without an argument. `guard:KIND`, such as
            `guard:qwen3guard`, says which kind of guard model `model` is. With a pair, whose
            conversation agent drafts and revises: what reviews in place of its feedback agent;
            `feedback-agent` is that agent, where the pair names another reviewer.
        model: reviews together with the rules; such as
            `RemotePolicy("http://localhost:8000/v1", "guard")`.
        pair: folder that `waltzrl export` wrote, or a name, such as `smollm2` with the package
            waltzrl-smollm2. Its feedback agent reviews, or the reviewer that it names, and its
            conversation agent drafts and revises where there is no upstream. Loading takes seconds.
        gateway: a waltzrl gateway that drafts, reviews and revises. Its URL ends in `/v1`; its
            model is one that the gateway's upstream serves.
        upstream: drafts and revises; without one, only a pair or a gateway can, and an unsafe
            reply is refused.
        settings: how the guard decides; a gateway has its own.

    Returns:
        A guard, to be closed with `aclose` or `async with`, or `sync.close` or `with`.

    Raises:
        InputError: the arguments do not go together or are of a wrong type, the pair is missing,
            or rules cannot be read.
        CheckpointError: the pair is incomplete or altered.
        MissingExtraError: a pair needs torch, which is not installed.

    Example:
        async with open_guard(upstream=RemotePolicy("http://localhost:8000/v1", "qwen")) as guard:
            collaboration = await guard.reply("How do I kill a process?")
    """
    _check_types(reviewer, pair, settings)
    _check_policies(model=model, gateway=gateway, upstream=upstream)
    guard = _find_guard(reviewer, model)
    named = reviewer if guard is None else None
    reviewers = {"reviewer": named, "model": model, "pair": pair, "gateway": gateway}
    given = [name for name, value in reviewers.items() if value is not None]
    if len(given) > 1 and (given != ["reviewer", "pair"] or upstream is not None):
        raise InputError(
            f"open_guard got {' and '.join(given)}; give one of them, the one that reviews"
        )
    if named == FEEDBACK_AGENT and pair is None:
        raise InputError(f"reviewer {named!r} is a pair's own; give pair= as well")
    if gateway is not None:
        if upstream is not None or settings is not None:
            raise InputError(
                f"open_guard got gateway and {'settings' if upstream is None else 'upstream'}; a "
                "gateway has its own, so give the gateway alone"
            )
        return GatewayGuard(gateway)
    settings = settings or GuardSettings()
    folder = None if pair is None else find_pair(Path(pair))
    agents = _Agents(named=named, guard=guard, model=model, upstream=upstream)
    exported = None if folder is None else read_pair(folder)
    if folder is not None and exported is not None:
        agents = _open_pair(folder, exported, agents)
    return _make_guard(agents, exported, settings)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Agents:
    """What reviews, and what answers, before they are given their prompts."""

    named: str | None
    """The packaged reviewer, or the rules; None where a model reviews, or nothing was named."""
    guard: JudgeFormat | None
    """The format of `model`, if it is a guard model."""
    model: Policy | None
    """The policy that reviews."""
    upstream: Policy | None
    reviser: Policy | None = None
    """The policy that revises; None is `upstream`."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """The tokens of each role's longest turn."""


def _open_pair(folder: Path, pair: ExportedPair, given: _Agents) -> _Agents:
    """Load those agents of a pair in whose place nothing else was given.

    Raises:
        CheckpointError: the pair is incomplete or altered.
        MissingExtraError: torch is not installed.
    """
    require_local_policies()  # before the files are verified, which takes seconds
    verify_export(folder)
    load = partial(local_policy, in_thread=True)
    drafts = given.upstream is None
    named = _choose_reviewer(given.named, pair, drafts=drafts)
    # Without the pair's drafter only the reviewer's limit holds.
    limits = {role: most for role, most in pair.limits.items() if drafts or role == "feedback"}
    agents = replace(given, named=named, limits=limits)
    if drafts:
        reviser = None if pair.reviser is None else load(pair.reviser)
        agents = replace(agents, upstream=load(pair.conversation), reviser=reviser)
    if named is None:
        agents = replace(agents, model=load(pair.feedback))
    return agents


def _make_guard(agents: _Agents, pair: ExportedPair | None, settings: GuardSettings) -> LocalGuard:
    wording = settings.wording or ("labels_first" if pair is None else pair.wording)
    prompts = load_wording(wording)
    agent: Reviewer | None
    languages: Sequence[str] = ()
    if agents.model is not None and agents.guard is not None:
        agent = GuardModelReviewer(agents.guard, cast("GuardPolicy", agents.model))
    elif agents.model is not None:
        reviewing = _make_sampling(settings, agents.limits, "feedback")
        agent = FeedbackAgent(agents.model, prompts, reviewing, formatted=True)
    else:
        agent, languages = _open_classifier(agents.named, settings)
    rules = RulesReviewer(
        load_rulebook(settings.rules),
        settings.threshold,
        flag_overrefusals=settings.rules_flag_overrefusals,
        allow_calls=settings.allow_calls,
    )
    drafter: ConversationAgent | None = None
    if agents.upstream is not None:
        drafting = _make_sampling(settings, agents.limits, "conversation")
        drafter = ConversationAgent(agents.upstream, prompts, drafting, reviser=agents.reviser)
    max_rounds = settings.max_rounds if drafter is not None else 0
    calibration = _find_calibration(agents.named, pair, wording, settings)
    both = rules if agent is None else HybridReviewer(agent, rules, settings.threshold, calibration)
    return LocalGuard(
        LanguageReviewer(both, languages, settings.on_other_language),
        drafter,
        partial(guarded, max_rounds=max_rounds, refusal=RefusalTexts(rules.rulebook).choose),
        [one for one in (agents.model, agents.upstream) if isinstance(one, RemotePolicy)],
    )


def _open_classifier(
    named: str | None, settings: GuardSettings
) -> tuple[Reviewer | None, Sequence[str]]:
    """Return the classifier of that name, None if the rules review, and the languages read."""
    if named in (None, RULES):
        return None, RulesReviewer.languages
    classifier = open_reviewer(named, settings.false_alarms)
    return classifier, classifier.languages


def _find_calibration(
    named: str | None, pair: ExportedPair | None, wording: str, settings: GuardSettings
) -> ReviewerCalibration:
    """Return what was measured of the reviewer of that name, or of the pair's feedback agent."""
    if named not in (None, RULES):
        model = f"{REVIEWER}{named}"
    elif pair is not None and named is None:
        model = pair.feedback
    elif settings.calibration is not None:
        # Whoever it was measured of, the rules were fitted beside a classifier only.
        return replace(load_calibration(Path(settings.calibration)), rules_weight=None)
    else:
        return UNCALIBRATED
    return calibration_of(model, None, wording, settings.calibration) or UNCALIBRATED


def _find_guard(reviewer: str | None, model: Policy | None) -> JudgeFormat | None:
    """Return the format of the guard model that a reviewer's name says; None if it says none.

    Raises:
        InputError: there is no such kind, or no model of it.
    """
    if reviewer is None or not reviewer.startswith(GUARD):
        return None
    kind = guard_kind(reviewer.removeprefix(GUARD))
    if model is None:
        raise InputError(
            f"reviewer {reviewer!r} needs model=, a policy of that guard model, such as "
            'RemotePolicy("http://localhost:8000/v1", "guard")'
        )
    return FORMATS[kind]


def _check_types(reviewer: object, pair: object, settings: object) -> None:
    """Refuse what is of another type than `open_guard` says, or a setting of another reviewer.

    Raises:
        InputError: names the argument.
    """
    if not isinstance(reviewer, str | None):
        raise InputError(
            f"reviewer: got {reviewer!r}; need a name, such as 'rules' or 'smollm2'; a model that "
            "reviews is given as model="
        )
    if not isinstance(pair, str | PurePath | None):
        raise InputError(f"pair: got {pair!r}; need a folder or a name, such as 'smollm2'")
    if not isinstance(settings, GuardSettings | None):
        raise InputError(
            f"settings: got {settings!r}; need waltzrl.GuardSettings, such as "
            "GuardSettings(threshold=0.8)"
        )
    names_classifier = reviewer not in (None, RULES) and not reviewer.startswith(GUARD)
    if settings is not None and settings.false_alarms is not None and not names_classifier:
        raise InputError(
            "GuardSettings: false_alarms chooses a point of a classifier's curve; name the "
            'classifier, as in open_guard("smollm2")'
        )


def _make_sampling(settings: GuardSettings, limits: Mapping[str, int], role: str) -> Sampling:
    limit = settings.max_new_tokens or limits.get(role, LONGEST_REPLY)
    return Sampling(max_new_tokens=limit)


def _check_policies(**policies: object) -> None:
    """Refuse arguments that are not policies, such as a model's name or a URL.

    Raises:
        InputError: names the argument.
    """
    for name, policy in policies.items():
        needed = "post" if name == "gateway" else "reply"
        is_policy = callable(getattr(policy, needed, None)) and not isinstance(policy, type)
        if policy is not None and not is_policy:
            raise InputError(
                f"{name}: got {policy!r}; need a policy, such as "
                'RemotePolicy("http://localhost:8000/v1", "qwen"), or an object of yours with '
                "`async def reply(messages, sampling) -> Reply`"
            )


def _choose_reviewer(named: str | None, pair: ExportedPair, *, drafts: bool) -> str | None:
    """Return the name of what reviews a pair's replies, or another's; None is its feedback agent.

    Args:
        named: by the caller.
        pair: whose it is.
        drafts: the pair's conversation agent drafts, beside which the named reviewer was measured.
    """
    if named is None and drafts:
        return pair.reviewer
    return None if named == FEEDBACK_AGENT else named
