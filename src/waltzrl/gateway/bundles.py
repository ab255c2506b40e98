"""Builds bundles from their recipes."""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import fields
from functools import cache, partial
from pathlib import Path
from typing import cast

import msgspec

from waltzrl import __version__
from waltzrl.agents import (
    FeedbackAgent,
    HybridReviewer,
    RefusalTexts,
    RulesReviewer,
    load_wording,
    wording_name,
)
from waltzrl.agents.breaker import Breaker, BreakerState
from waltzrl.agents.calibration import UNCALIBRATED, ReviewerCalibration
from waltzrl.agents.classifier import FIRST_AT_ONCE, ClassifierReviewer
from waltzrl.agents.classifier import REVIEWS_AT_ONCE as CLASSIFIED_AT_ONCE
from waltzrl.agents.coaching import ExampleSource
from waltzrl.agents.failsafe import (
    REVIEWS_AT_ONCE,
    FailsafeReviewer,
    OnFailure,
    OnOverload,
    is_overload,
)
from waltzrl.agents.identity import calibration_of, identify_agent
from waltzrl.agents.opening import REVIEWER, open_reviewer
from waltzrl.agents.review_queue import ReviewQueue
from waltzrl.agents.rules import Rulebook, load_rulebook
from waltzrl.agents.rules_reviewer import (
    CRITICAL_CATEGORIES,
    CategoryActions,
    LanguageReviewer,
    rules_name,
)
from waltzrl.agents.settings import FeedbackConfig
from waltzrl.agents.wording import SETS, find_forbidden
from waltzrl.collaboration import Pattern, Reviewer, draft_only, guarded, observed
from waltzrl.foundation.background import in_background
from waltzrl.foundation.plugins import load_plugin
from waltzrl.gateway.description import RULES, BundleDescription, without_secrets
from waltzrl.gateway.exchange import Bundle, Upstream
from waltzrl.gateway.limits import Limits
from waltzrl.gateway.metric_groups import BackendCounters
from waltzrl.gateway.policy_upstream import PolicyUpstream
from waltzrl.gateway.private_reviewer import PrivateReviewer
from waltzrl.gateway.private_upstream import PrivateUpstream
from waltzrl.gateway.reviewer_check import ReviewerCheck
from waltzrl.gateway.router import UpstreamRoute, UpstreamRouter
from waltzrl.gateway.settings import BundleRecipe, bundle_table
from waltzrl.gateway.upstream import HttpUpstream
from waltzrl.policies import Policy, RemotePolicy, Sampling
from waltzrl.policies.gguf import short_name
from waltzrl.policies.opening import local_policy, remote_policy
from waltzrl.policies.settings import (
    DEFAULT_UPSTREAM,
    NamedUpstreamConfig,
    ServerConfig,
    UpstreamConfig,
)
from waltzrl.records import OTHER_LANGUAGE, Feedback
from waltzrl.store.privacy.opening import open_scanner

KEY_VARIABLE = "WALTZRL_UPSTREAM_KEY"
"""The variable of an upstream's API key; the upstream's name is filled in."""
UNREAD_TEXT = (
    "text of %s: rules, classifiers and guard models cannot read it, so only revisions keep to it; "
    "rules of your own could search for %s, see docs/rules.md"
)
UNGUARDED = (
    "actions of %s: replies are sent in spite of findings of %s, which are critical: elsewhere no "
    "model overrules them"
)
BEST_FIRST: tuple[BreakerState, ...] = ("closed", "half_open", "open")

logger = logging.getLogger(__name__)

OpenUpstream = Callable[[UpstreamConfig, str | None], AbstractAsyncContextManager[Upstream]]
"""Opens an upstream that a package provides, for the duration of a block; the name is that of its
model, None for its own."""


def bundle_id(recipe: BundleRecipe) -> str:
    """Return the id of a bundle: the hash of its rules, weights, wordings and thresholds.

    Raises:
        InputError: rules cannot be read.
    """
    return describe_bundle(recipe, load_rulebook(recipe.rules, recipe.rules_off))[0]


def describe_bundle(
    recipe: BundleRecipe, rules: Rulebook, policy: str = ""
) -> tuple[str, BundleDescription]:
    """Return the id of a bundle, and what it is; weights are read once for both.

    Args:
        recipe: of the bundle.
        rules: that it names.
        policy: the name of the policy that it is for; empty for the gateway's own.

    Raises:
        InputError: weights cannot be read.
    """
    contents = _collect_contents(recipe, rules)
    if policy:  # two policies with equal settings are told apart
        contents["policy"] = policy
    parts = {
        "conversation weights": contents.get("conversation"),
        "revision weights": contents.get("revision"),
        "feedback weights": contents.get("feedback weights"),
        "calibration": contents.get("calibration"),
        "wordings": contents.get("wordings"),
    }
    description = BundleDescription(
        recipe=without_secrets(bundle_table(recipe)),
        rules={rule.id: _hash_encoded(repr(rule).encode()) for rule in rules.rules},
        parts={
            RULES: rules_name(rules),
            # What is a text already has the hash of its weights.
            **{
                name: part if isinstance(part, str) else _hash_contents(part)
                for name, part in parts.items()
                if part is not None
            },
        },
        version=__version__,
        policy=policy,
    )
    return _hash_contents(contents), description


def _hash_contents(contents: object) -> str:
    # Sorted, because the order of the keys of a recipe decides nothing.
    return _hash_encoded(msgspec.json.encode(contents, order="sorted"))


def _hash_encoded(encoded: bytes) -> str:
    return hashlib.sha256(encoded).hexdigest()[:12]


def _collect_contents(recipe: BundleRecipe, rules: Rulebook) -> dict[str, object]:
    """Return everything that determines a reply, as the id hashes it."""
    contents = _identify_upstream(recipe.upstream)
    if recipe.enabled:
        # Of a gateway's recipe only these fields determine a reply.
        contents = {f.name: getattr(recipe, f.name) for f in fields(BundleRecipe)} | contents
        contents["rules"] = _make_rules_reviewer(recipe, rules).name
    contents.pop("privacy", None)
    if (privacy := recipe.privacy).upstream != "off":  # else the rest of it decides nothing
        contents["privacy"] = [privacy.upstream, privacy.regions]
    if recipe.enabled and recipe.stage == 2:
        assert recipe.feedback is not None
        feedback = msgspec.to_builtins(recipe.feedback)
        del feedback["calibration"], feedback["self_test"]  # no part of what is served
        contents["feedback"] = feedback
        contents["calibration"] = _find_calibration(recipe.feedback)
        contents["feedback weights"] = identify_agent(recipe.feedback.model, recipe.feedback.server)
    wordings = [recipe.upstream.wording]
    if recipe.feedback is not None and "feedback" in contents:
        wordings.append(recipe.feedback.wording)
    if folders := [wording_name(name) for name in wordings if name not in SETS]:
        contents["wordings"] = folders
    return contents


def _identify_upstream(upstream: UpstreamConfig) -> dict[str, object]:
    contents: dict[str, object] = {"upstream": upstream}
    if (place := upstream.folder or upstream.program) is not None:
        contents["conversation"] = identify_agent(place, None)
    if upstream.reviser is not None:
        contents["revision"] = identify_agent(upstream.reviser, None)
    if upstream.specialists is not None:
        adapters = sorted(Path(upstream.specialists).glob("*/adapter"))
        parts = [part for path in adapters for part in (path.parent / "specialist.json", path)]
        contents["conversation"] = [
            [str(p.parent.name), identify_agent(str(p), None)] for p in parts
        ]
    return contents


class Bundles:
    """Builds bundles, which share weights, rulebooks, connections and circuit breakers."""

    def __init__(
        self,
        limits: Limits,
        model_name: str | None = None,
        counters: BackendCounters | None = None,
        examples: ExampleSource | None = None,
    ) -> None:
        """Load nothing yet.

        Args:
            limits: on the sizes of an upstream's replies.
            model_name: the name for clients of a model in this process; None for its folder's.
            counters: count what upstreams and reviewers answer; None where nobody reads them.
            examples: for feedback models.
        """
        self._limits, self._model_name = limits, model_name
        self._counters = counters or BackendCounters()
        self._examples = examples
        self._upstreams: dict[tuple[str, ServerConfig], Upstream] = {}
        self._remote: dict[tuple[str, str], RemotePolicy] = {}
        self._local: dict[str, Policy] = {}
        self._classifiers: dict[tuple[str, float | None], ClassifierReviewer] = {}
        self._breakers: dict[FeedbackConfig, Breaker] = {}
        self._queues: dict[FeedbackConfig, ReviewQueue] = {}
        self._checks: dict[FeedbackConfig, ReviewerCheck] = {}
        self._rulebooks: dict[str, Rulebook] = {}
        self._open_scanner = cache(open_scanner)
        self._connections = AsyncExitStack()
        self.descriptions: dict[str, tuple[BundleRecipe, BundleDescription]] = {}
        """The id of each bundle that was opened -> its recipe, and what it is."""

    async def open(self, recipe: BundleRecipe, policy: str = "") -> Bundle:
        """Build a bundle; weights are loaded in a thread.

        Args:
            recipe: of the bundle.
            policy: the name of the policy that it is for; empty for the gateway's own.

        Raises:
            InputError: rules or the URL of a server are invalid, or weights are missing or damaged.
            MissingExtraError: weights must be loaded and torch is not installed.
        """
        rules, reviewer = self.rules(recipe), await self.reviewer(recipe)
        # After `reviewer`, which loads the classifier that knows its languages.
        languages = self._languages(recipe)
        has_model = recipe.enabled and recipe.stage == 2
        id_, description = await asyncio.to_thread(describe_bundle, recipe, rules.rulebook, policy)
        self.descriptions[id_] = (recipe, description)
        named = policy or "the recipe"
        config = recipe.feedback
        in_words = has_model and config and not (config.guard or config.model.startswith(REVIEWER))
        if recipe.text and not in_words:
            logger.warning(UNREAD_TEXT, named, find_forbidden(recipe.text))
        sent = {name for name, action in recipe.actions.items() if action in ("off", "observe")}
        if critical := sorted(CRITICAL_CATEGORIES & sent):
            logger.warning(UNGUARDED, named, ", ".join(critical))
        return Bundle(
            id=id_,
            stage=(recipe.stage if recipe.enabled else 0),
            pattern=_make_pattern(recipe, rules.rulebook) if recipe.enabled else draft_only,
            reviewer=self._in_languages(recipe, reviewer, languages),
            languages=languages,
            on_other_language=recipe.on_other_language,
            admission=reviewer.admit if isinstance(reviewer, FailsafeReviewer) else None,
            wording=load_wording(recipe.upstream.wording).with_policy(recipe.text),
            upstream=self._conceal_from_upstream(recipe, await self._open_upstream(recipe)),
            reviser=await self._reviser(recipe),
            rules=rules,
            shows_examples=recipe.examples,
            stream_mode=recipe.stream_mode,
            policy=policy,
            categories={rule.id: rule.category for rule in rules.rulebook.rules},
            vision=has_model and config is not None and config.vision,
        )

    def _languages(self, recipe: BundleRecipe) -> Sequence[str]:
        """Return the languages that the reviewer of an opened recipe reads; none are all."""
        if not recipe.enabled:
            return ()
        if recipe.stage == 1 or recipe.feedback is None:
            return RulesReviewer.languages
        agent = self._classifiers.get((recipe.feedback.model, recipe.feedback.false_alarms))
        return () if agent is None else agent.languages

    def _in_languages(
        self, recipe: BundleRecipe, reviewer: Reviewer, languages: Sequence[str]
    ) -> Reviewer:
        if not languages:
            return reviewer
        on_other_language = self._counters.other_languages.add
        return LanguageReviewer(reviewer, languages, recipe.on_other_language, on_other_language)

    def rules(self, recipe: BundleRecipe) -> RulesReviewer:
        """Return the rules of a bundle; bundles with equal rules share the large rulebook.

        Raises:
            InputError: the rules cannot be read.
        """
        rulebook = load_rulebook(recipe.rules, recipe.rules_off)
        return _make_rules_reviewer(recipe, self._rulebooks.setdefault(rulebook.digest, rulebook))

    @property
    def breakers(self) -> dict[str, BreakerState]:
        """Name of each circuit breaker -> its state, the worst one of several of a name."""
        breakers = [*self._breakers.values()]
        breakers += [
            upstream.breaker
            for upstream in self._upstreams.values()
            if isinstance(upstream, HttpUpstream)
        ]
        named = ((breaker.name, breaker.state) for breaker in breakers)
        states = sorted(named, key=lambda pair: BEST_FIRST.index(pair[1]))
        # Of several with one name a dict keeps the last, which is the worst.
        return dict(states)

    @property
    def waiting_reviews(self) -> int:
        """Reviews that wait for a place at a feedback model."""
        return sum(queue.waiting for queue in self._queues.values())

    def knows_model(self, name: str) -> bool:
        """Return whether an upstream or the recipe of a feedback model names this model."""
        return any(name in upstream.names for upstream in self._upstreams.values()) or any(
            name == config.model for config in self._breakers
        )

    @property
    def self_test(self) -> dict[str, bool]:
        """Whether each reply of the self-test passed with every feedback model."""
        passed = [check.passed for check in self._checks.values() if check.passed]
        return {name: all(check[name] for check in passed) for name in passed[0]} if passed else {}

    def check(self, recipe: BundleRecipe) -> ReviewerCheck | None:
        """Return the check of the model that reviews in an open bundle; None without one."""
        return None if recipe.feedback is None else self._checks.get(recipe.feedback)

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()

    async def reviewer(self, recipe: BundleRecipe) -> Reviewer:
        """Return the reviewer of a bundle: the rules, in stage 2 a model as well.

        Raises:
            InputError: rules or the URL of a server are invalid, or weights are missing or damaged.
            MissingExtraError: weights must be loaded and torch is not installed.
        """
        rules = self.rules(recipe)
        if not recipe.enabled or recipe.stage == 1:
            return rules
        config = recipe.feedback
        assert config is not None, "BundleRecipe requires feedback in stage 2"
        agent = await self._agent(config, recipe.text, self._examples if recipe.examples else None)
        privacy = recipe.privacy
        if config.server is not None and privacy.upstream != "off":
            is_numbered = privacy.upstream == "pseudonymise"
            agent = PrivateReviewer(
                agent, self._open_scanner(privacy.regions), numbered=is_numbered
            )
        breaker = self._breakers.setdefault(config, Breaker("feedback"))
        if config not in self._checks:
            check = self._checks[config] = ReviewerCheck(agent, recipe, breaker)
            await self._connections.enter_async_context(in_background(check.run()))
        calibration = await asyncio.to_thread(_find_calibration, config)
        if calibration is None:
            logger.warning(
                "the feedback model %s was not calibrated, so it challenges no refusal; see "
                "waltzrl calibrate",
                config.model,
            )
        return FailsafeReviewer(
            HybridReviewer(agent, rules, recipe.threshold, calibration or UNCALIBRATED),
            self._in_languages(recipe, rules, RulesReviewer.languages),
            breaker=breaker,
            budget_seconds=recipe.review_timeout_ms / 1e3,
            queue=self._queues.setdefault(config, _make_queue(config)),
            on_failure=recipe.on_failure,
            on_overload=recipe.on_overload,
            on_review_failure=self._counters.failures.add,
        )

    async def _agent(
        self, config: FeedbackConfig, text: str, examples: ExampleSource | None
    ) -> Reviewer:
        """Return the model that reviews, without rules: a classifier, or a policy in the role.

        Args:
            config: of the model.
            text: the operator's policy, for a model that reviews in words.
            examples: for such a model; None for none.
        """
        if config.model.startswith(REVIEWER):
            chosen = (config.model, config.false_alarms)
            if chosen not in self._classifiers:
                name = config.model.removeprefix(REVIEWER)
                self._classifiers[chosen] = await asyncio.to_thread(
                    open_reviewer, name, config.false_alarms
                )
            return self._classifiers[chosen]
        sampling = Sampling(max_new_tokens=config.max_new_tokens)
        if config.guard is not None:
            from waltzrl.evaluation.judges.formats import FORMATS
            from waltzrl.evaluation.judges.guard_model_reviewer import GuardModelReviewer

            return GuardModelReviewer(FORMATS[config.guard], await self._remote_policy(config))
        policy: Policy
        if config.server is None:
            policy = await self._local_policy(config.model)
        else:
            policy = await self._remote_policy(config)
        wording = load_wording(config.wording).with_policy(text)
        return FeedbackAgent(policy, wording, sampling, formatted=True, examples=examples)

    async def _remote_policy(self, config: FeedbackConfig) -> RemotePolicy:
        assert config.server is not None, "FeedbackConfig requires a server of a guard"
        key = (config.model, config.server)
        if key not in self._remote:
            policy = remote_policy(
                config.server,
                config.model,
                key_env=config.api_key_env,
                concurrency=REVIEWS_AT_ONCE,
                retries=1,
            )
            self._remote[key] = await self._connections.enter_async_context(policy)
        return self._remote[key]

    async def _local_policy(self, folder: str) -> Policy:
        if folder not in self._local:
            self._local[folder] = await asyncio.to_thread(local_policy, folder, in_thread=True)
        return self._local[folder]

    async def _reviser(self, recipe: BundleRecipe) -> Upstream | None:
        config = recipe.upstream
        if config.reviser is None:
            return None
        return self._conceal_from_upstream(
            recipe, await self._local_upstream(config, config.reviser)
        )

    async def _local_upstream(self, config: UpstreamConfig, folder: str) -> Upstream:
        """Return a model of this process, under the name of the one that drafts."""
        model = self._model_name or short_name(str(config.folder))
        return PolicyUpstream(model, await self._local_policy(folder), config.max_new_tokens)

    def _conceal_from_upstream(self, recipe: BundleRecipe, upstream: Upstream) -> Upstream:
        """Return the upstream; what personal data it gets is the recipe's choice."""
        privacy = recipe.privacy
        if privacy.upstream == "off":
            return upstream
        is_numbered = privacy.upstream == "pseudonymise"
        return PrivateUpstream(upstream, self._open_scanner(privacy.regions), numbered=is_numbered)

    async def _open_upstream(self, recipe: BundleRecipe) -> Upstream:
        config = recipe.upstream
        default = await self._server(DEFAULT_UPSTREAM, config)
        if not recipe.upstreams and not config.retries:
            return default
        named = [
            _make_route(name, config, await self._server(name, config), config.models)
            for name, config in recipe.upstreams.items()
        ]
        return UpstreamRouter(_make_route(DEFAULT_UPSTREAM, config, default), named)

    async def _server(self, name: str, config: UpstreamConfig | NamedUpstreamConfig) -> Upstream:
        key = (name, config)
        if key not in self._upstreams:
            self._upstreams[key] = await self._build_upstream(name, config)
        return self._upstreams[key]

    async def _build_upstream(
        self, name: str, config: UpstreamConfig | NamedUpstreamConfig
    ) -> Upstream:
        if isinstance(config, UpstreamConfig):
            for kind in ("specialists", "program"):
                if getattr(config, kind) is not None:
                    open_upstream = cast("OpenUpstream", load_plugin("waltzrl.upstreams", kind))
                    opening = open_upstream(config, self._model_name)
                    return await self._connections.enter_async_context(opening)
            if config.folder is not None:
                return await self._local_upstream(config, config.folder)
        assert config.url is not None
        variable = config.api_key_env or f"{KEY_VARIABLE}_{name.upper().replace('-', '_')}"
        upstream = HttpUpstream(
            config.url,
            self._limits,
            api_key=os.environ.get(variable),
            timeout_seconds=config.timeout_seconds,
            name=name,
            on_response=self._counters.responses.add,
        )
        self._connections.callback(upstream.close)
        await self._connections.enter_async_context(in_background(upstream.watch()))
        return upstream


def _make_queue(config: FeedbackConfig) -> ReviewQueue:
    if config.model.startswith(REVIEWER):
        return ReviewQueue(CLASSIFIED_AT_ONCE, first_places=FIRST_AT_ONCE)
    return ReviewQueue(REVIEWS_AT_ONCE)  # a server batches what it gets


def _make_route(
    name: str, config: ServerConfig, upstream: Upstream, models: tuple[str, ...] = ()
) -> UpstreamRoute:
    return UpstreamRoute(
        name=name,
        upstream=upstream,
        models=models,
        fallback=config.fallback,
        retries=config.retries,
        timeout_seconds=config.timeout_seconds,
    )


def _make_rules_reviewer(recipe: BundleRecipe, rules: Rulebook) -> RulesReviewer:
    return RulesReviewer(
        rules,
        recipe.threshold,
        flag_overrefusals=recipe.rules_flag_overrefusals,
        allow_calls=recipe.allow_calls,
        actions=CategoryActions(recipe.actions),
    )


def _make_pattern(recipe: BundleRecipe, rules: Rulebook) -> Pattern:
    if recipe.observe_only:
        return observed
    fail_open = partial(_fails_open, recipe.on_failure, recipe.on_overload)
    refusal = RefusalTexts(rules, recipe.refusals).choose
    return partial(guarded, max_rounds=recipe.max_rounds, fail_open=fail_open, refusal=refusal)


def _fails_open(on_failure: OnFailure, on_overload: OnOverload, feedback: Feedback) -> bool:
    """Return whether a reply is sent for which there is no review."""
    if feedback.failure.startswith(OTHER_LANGUAGE):
        return False  # feedback is only without a form here if the operator declines these
    return on_overload == "pass" if is_overload(feedback.failure) else on_failure == "serve"


def _find_calibration(config: FeedbackConfig) -> ReviewerCalibration | None:
    file, guard = config.calibration, config.guard
    return calibration_of(config.model, config.server, config.wording, file, guard)
