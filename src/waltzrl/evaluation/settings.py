"""What an evaluation is told: patterns, agents and their limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from waltzrl.budget import ModelPrice
from waltzrl.store.memory.settings import ExampleReader


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPrices:
    """What an evaluation pays; for the ledger."""

    usd_per_hour: Annotated[float, Field(ge=0)] = 0.0
    """What this machine costs, in US dollars."""
    prices: Mapping[str, ModelPrice] = field(default_factory=dict)
    """Prices of models on servers; others are those of genai-prices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationConfig(EvaluationPrices):
    """Which patterns are evaluated, with which agents."""

    patterns: tuple[str, ...]
    """The patterns to run, among base, collaborate, safeguard, oracle, guarded, observe, best-of-3,
    guard, guard-loop, served and replay."""
    conversation: str
    """A folder in Hugging Face format; behind a server, the name of a model; or `saved:FILE`, or
    `audit:FOLDER`, whose collaborations the pattern `replay` repeats; or `hollow`, which complies
    with every request in form only, and declines where it is asked for a revision."""
    feedback: str
    """The same for the feedback agent, or `rules`, or `keywords`, or `reviewer:NAME`, a classifier
    that a package provides, which reviews together with the rules, as in a gateway."""
    reviser: str | None = None
    """What revises: a folder, or a model on the server; None is the conversation agent."""
    guard: str | None = None
    """Folder of two `LinearGuard`s, for the patterns `guard` and `guard-loop`: a reviewer that is
    not generative."""
    server: str | None = None
    """An OpenAI-compatible server's URL; None loads the agents into this process."""
    wording: str = "plain"
    """`plain`, `labels_first`, `tiny`, or a folder of prompts."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest turn of an agent, in tokens."""
    feedback_max_new_tokens: Annotated[int, Field(ge=1)] | None = None
    """Longest feedback; None is `max_new_tokens`."""
    calibration: str | None = None
    """File of `waltzrl calibrate` for the patterns of a gateway; None is the one in the feedback
    agent's folder."""
    samples: Annotated[int, Field(ge=1)] = 1
    """Replies to every prompt; several need a temperature."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """The temperature of the conversation agent; 0 is its likeliest reply. The feedback agent does
    not sample."""
    max_rounds: Annotated[int, Field(ge=0)] = 1
    examples: str | None = None
    """URL of a gateway's memory, whose coaching is shown as examples; None for none."""
    examples_for: tuple[ExampleReader, ...] = ("conversation",)
    """The agents that are shown the examples; as `memory.examples_for` of a gateway."""
    concurrency: Annotated[int, Field(ge=1)] = 64
    """Collaborations at once."""
