"""From the recipe of a bundle to the bundle that serves."""

import asyncio
import hashlib
import os
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import fields
from functools import partial
from pathlib import Path

import msgspec

from waltzrl.agents import FeedbackAgent, HybridReviewer, Reviewer, RulesReviewer, load_wording
from waltzrl.agents.breaker import Breaker, BreakerState
from waltzrl.agents.failsafe import FailsafeReviewer, ReviewFailure
from waltzrl.build.identity import identity
from waltzrl.build.models import local_policy, remote_policy
from waltzrl.collaboration import Pattern, draft_only, guarded, observed
from waltzrl.config.gateway import BundleRecipe, FeedbackConfig, UpstreamConfig
from waltzrl.policies import Policy, Sampling
from waltzrl.rules import Rulebook, load_rulebook
from waltzrl.serving.access import Limits
from waltzrl.serving.exchange import Bundle, Upstream
from waltzrl.serving.upstream import HttpUpstream, PolicyUpstream

REVIEWS_AT_ONCE = 64
"""Of a feedback model behind a server."""
HASHED_AS = {
    "rules_flag_overrefusals": "rules_mend_refusals",
    "review_timeout_ms": "budget_ms",
}
"""Keys that had another name when the first bundles were named; so that ids stay the same."""
WORST_FIRST: tuple[BreakerState, ...] = ("open", "half_open")


def bundle_id(recipe: BundleRecipe) -> str:
    """Name a bundle by what is in it: rules, weights, wordings and thresholds.

    Raises:
        InputError: rules cannot be read.
    """
    return _named(recipe, load_rulebook(recipe.rules))


def _named(recipe: BundleRecipe, rules: Rulebook) -> str:
    about: dict[str, object] = {"upstream": recipe.upstream}
    if recipe.upstream.folder is not None:
        about["conversation"] = identity(recipe.upstream.folder, None)
    if recipe.enabled:
        about |= {
            HASHED_AS.get(field.name, field.name): getattr(recipe, field.name)
            for field in fields(BundleRecipe)
        }
        about["rules"] = _reviewing(recipe, rules).name
    if recipe.enabled and recipe.stage == 2:
        assert recipe.feedback is not None
        about["feedback weights"] = identity(recipe.feedback.model, recipe.feedback.server)
    return hashlib.sha256(msgspec.json.encode(about, order="sorted")).hexdigest()[:12]


class Bundles:
    """Makes bundles; what several need, weights and connections, is made once."""

    def __init__(
        self, limits: Limits, model_name: str | None, told: Callable[[ReviewFailure], None]
    ) -> None:
        """Make nothing yet.

        Args:
            limits: on what an upstream may send.
            model_name: what clients call a model that runs in this process.
            told: called with the cause of each failed review by a model.
        """
        self._limits, self._model_name, self._told = limits, model_name, told
        self._upstreams: dict[UpstreamConfig, Upstream] = {}
        self._policies: dict[tuple[str, str | None], Policy] = {}
        self._breakers: dict[FeedbackConfig, Breaker] = {}
        self._rulebooks: dict[str, Rulebook] = {}
        self._connections = AsyncExitStack()

    async def open(self, recipe: BundleRecipe) -> Bundle:
        """Make a bundle; weights are loaded in a thread.

        Raises:
            InputError: rules or a server's address are none; no such weights, or damaged ones.
            MissingExtraError: weights are to be loaded and torch is missing.
        """
        rules = self.rules(recipe)
        reviews = recipe.enabled and recipe.stage == 2
        return Bundle(
            id=await asyncio.to_thread(_named, recipe, rules.rulebook),
            stage=(recipe.stage if recipe.enabled else 0),
            pattern=_pattern(recipe) if recipe.enabled else draft_only,
            reviewer=await self._reviewer(recipe, rules) if reviews else rules,
            wording=load_wording(recipe.upstream.wording),
            upstream=await self._upstream(recipe.upstream),
        )

    def rules(self, recipe: BundleRecipe) -> RulesReviewer:
        """Return the rules of a bundle; bundles with the same ones share them, for they are large.

        Raises:
            InputError: they cannot be read.
        """
        found = load_rulebook(recipe.rules)
        return _reviewing(recipe, self._rulebooks.setdefault(found.digest, found))

    @property
    def breaker(self) -> BreakerState:
        """The worst state of the breakers before the feedback models."""
        states = {breaker.state for breaker in self._breakers.values()}
        return next((state for state in WORST_FIRST if state in states), "closed")

    async def aclose(self) -> None:
        """Close all connections."""
        await self._connections.aclose()

    async def _reviewer(self, recipe: BundleRecipe, rules: RulesReviewer) -> Reviewer:
        about = recipe.feedback
        assert about is not None, "a recipe is checked when it is read"
        sampling = Sampling(max_new_tokens=about.max_new_tokens)
        agent = FeedbackAgent(await self._policy(about), load_wording(about.wording), sampling)
        return FailsafeReviewer(
            HybridReviewer(agent, rules, recipe.threshold),
            rules,
            breaker=self._breakers.setdefault(about, Breaker()),
            budget_seconds=recipe.review_timeout_ms / 1e3,
            on_failure=recipe.on_failure,
            told=self._told,
        )

    async def _policy(self, about: FeedbackConfig) -> Policy:
        if about.server is None:
            return await self._weights(about.model)
        place = (about.model, about.server)
        if place not in self._policies:
            remote = remote_policy(
                about.server,
                about.model,
                key_env=about.api_key_env,
                concurrency=REVIEWS_AT_ONCE,
                retries=1,
            )
            self._policies[place] = await self._connections.enter_async_context(remote)
        return self._policies[place]

    async def _weights(self, folder: str) -> Policy:
        if (folder, None) not in self._policies:
            loaded = await asyncio.to_thread(local_policy, folder, in_thread=True)
            self._policies[folder, None] = loaded
        return self._policies[folder, None]

    async def _upstream(self, about: UpstreamConfig) -> Upstream:
        if about not in self._upstreams:
            made = await self._made_upstream(about)
            self._connections.push_async_callback(made.aclose)
            self._upstreams[about] = made
        return self._upstreams[about]

    async def _made_upstream(self, about: UpstreamConfig) -> Upstream:
        if about.folder is not None:
            name = self._model_name or Path(about.folder).name
            return PolicyUpstream(name, await self._weights(about.folder), about.max_new_tokens)
        assert about.url is not None
        return HttpUpstream(
            about.url,
            self._limits,
            api_key=os.environ.get(about.api_key_env),
            timeout_seconds=about.timeout_seconds,
        )


def _reviewing(recipe: BundleRecipe, rules: Rulebook) -> RulesReviewer:
    return RulesReviewer(rules, recipe.threshold, flag_overrefusals=recipe.rules_flag_overrefusals)


def _pattern(recipe: BundleRecipe) -> Pattern:
    if recipe.observe_only:
        return observed
    fail_open = recipe.on_failure == "serve"
    return partial(guarded, max_rounds=recipe.max_rounds, fail_open=fail_open)
