"""From a gateway's recipe to the bundles that serve, and to which conversation each serves."""

import hashlib
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.metadata import version

import msgspec

from waltzrl.agents import FeedbackAgent, HybridReviewer, Reviewer, RulesReviewer, load_wording
from waltzrl.collaboration import Pattern, draft_only, guarded, observed
from waltzrl.policies import Policy, Sampling
from waltzrl.recipes.gateway import FeedbackModel, GatewayRecipe
from waltzrl.recipes.identity import identity
from waltzrl.recipes.models import local_policy, remote_policy
from waltzrl.serving.breaker import Breaker
from waltzrl.serving.failsafe import Cause, FailsafeReviewer
from waltzrl.serving.gateway import Bundle, Request

BUCKETS = 10_000
"""Conversations fall into so many; a percentage takes the first of them."""
REVIEWS_AT_ONCE = 64
"""Of a feedback model behind a server."""


def rules_bundle(recipe: GatewayRecipe, rules: RulesReviewer) -> Bundle:
    """Return stage 1; the upstream alone when the recipe is not enabled."""
    wording = load_wording(recipe.upstream.wording)
    if not recipe.enabled:
        name = _named({"upstream": recipe.upstream})
        return Bundle(id=name, stage=0, pattern=draft_only, reviewer=rules, wording=wording)
    return Bundle(
        id=_named({"stage": 1, "rules": rules.name, **_settings(recipe)}),
        stage=1,
        pattern=_pattern(recipe),
        reviewer=rules,
        wording=wording,
    )


async def model_bundle(
    recipe: GatewayRecipe,
    rules: RulesReviewer,
    breaker: Breaker,
    told: Callable[[Cause], None],
    stack: AsyncExitStack,
) -> Bundle:
    """Return stage 2.

    Args:
        recipe: has a feedback model.
        rules: the second opinion, and what stands in when the model fails.
        breaker: before the model.
        told: called with the cause of each failure.
        stack: closes the connections to the model.

    Raises:
        InputError: the server's address is none; no such weights, or they are damaged.
        MissingExtraError: weights are to be loaded and torch is missing.
    """
    assert recipe.feedback is not None
    policy = await _policy(recipe.feedback, stack)
    sampling = Sampling(max_new_tokens=recipe.feedback.max_new_tokens)
    agent = FeedbackAgent(policy, load_wording(recipe.feedback.wording), sampling)
    reviewer: Reviewer = FailsafeReviewer(
        HybridReviewer(agent, rules, recipe.threshold),
        rules,
        breaker=breaker,
        budget_seconds=recipe.budget_ms / 1e3,
        on_failure=recipe.on_failure,
        told=told,
    )
    weights = identity(recipe.feedback.model, recipe.feedback.server)
    return Bundle(
        id=_named({"stage": 2, "rules": rules.name, "feedback": weights, **_settings(recipe)}),
        stage=2,
        pattern=_pattern(recipe),
        reviewer=reviewer,
        wording=load_wording(recipe.upstream.wording),
    )


def split(first: Bundle, last: Bundle, percentage: float) -> Callable[[Request], Bundle]:
    """Return what chooses a request's bundle: `last` for a share of the conversations.

    A conversation stays where it is, and raising the percentage takes none out.
    """
    share = percentage / 100 * BUCKETS
    if share >= BUCKETS:
        return lambda request: last
    return lambda request: last if bucket(_conversation(request)) < share else first


def bucket(conversation: str) -> int:
    """Return where a conversation falls, 0 to `BUCKETS` - 1: always the same place."""
    digest = hashlib.blake2b(conversation.encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest) % BUCKETS


async def _policy(about: FeedbackModel, stack: AsyncExitStack) -> Policy:
    if about.server is None:
        return local_policy(about.model, in_thread=True)
    remote = remote_policy(
        about.server,
        about.model,
        key_env=about.api_key_env,
        concurrency=REVIEWS_AT_ONCE,
        retries=1,
    )
    return await stack.enter_async_context(remote)


def _conversation(request: Request) -> str:
    """Name what must not change its stage half-way: the client's name for it, or how it began."""
    exchange = request.exchange
    return exchange.subject or f"{request.caller.name} {exchange.prompt.messages[0].content}"


def _pattern(recipe: GatewayRecipe) -> Pattern:
    if recipe.observe_only:
        return observed
    fail_open = recipe.on_failure == "serve"
    return partial(guarded, max_rounds=recipe.max_rounds, fail_open=fail_open)


def _settings(recipe: GatewayRecipe) -> dict[str, object]:
    """What of a recipe decides how an answer comes about."""
    return {
        "version": version("waltzrl"),
        "upstream": recipe.upstream,
        "feedback_settings": recipe.feedback,
        "threshold": recipe.threshold,
        "max_rounds": recipe.max_rounds,
        "observe_only": recipe.observe_only,
        "budget_ms": recipe.budget_ms,
        "on_failure": recipe.on_failure,
    }


def _named(parts: dict[str, object]) -> str:
    return hashlib.sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()[:12]
