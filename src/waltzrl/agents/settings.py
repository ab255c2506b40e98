"""What a recipe says of the model that reviews."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from waltzrl.agents.failsafe import OnFailure, OnOverload
from waltzrl.agents.opening import REVIEWER, GuardKind

OVERLOADS: Mapping[OnFailure, OnOverload] = {
    "refuse": "unavailable",
    "rules": "rules",
    "serve": "pass",
}
"""The meaning of `on_failure` for a model that only has no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewConfig:
    """How stage 2 reviews under load."""

    on_overload: OnOverload | None = None
    """If the model has no time for a review: `unavailable` answers 503 with Retry-After, `rules`
    lets the rules decide, `pass` sends the reply and records that nobody reviewed it. None is what
    comes closest to `on_failure`: `unavailable` for `refuse`, `rules`, or `pass` for `serve`."""

    def choice(self, on_failure: OnFailure) -> OnOverload:
        return self.on_overload or OVERLOADS[on_failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackConfig:
    """The model that reviews in stage 2."""

    model: str
    """The model's name on `server`; without a server, weights to load, a folder or a GGUF file, or
    `reviewer:NAME` for a classifier that an installed package provides."""
    server: str | None = None
    """URL of an OpenAI-compatible server, without `/chat/completions`."""
    guard: GuardKind | None = None
    """The kind of guard model that `model` on `server` is: it is asked in its own format, and the
    advice is ours, by category. None is a model that reviews in words."""
    wording: str = "labels_first"
    """labels_first for a model that was not trained to review, plain or tiny for one that was."""
    max_new_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest review in tokens."""
    self_test: bool = True
    """Test the model on replies in English while the gateway starts; it is not ready before."""
    calibration: str | None = None
    """File of `waltzrl calibrate`; None for calibration.json in the folder of weights, if it is
    there. Without a calibration the model challenges no refusal."""
    false_alarms: Annotated[float | None, Field(gt=0, lt=1)] = None
    """Of a classifier: the share of good replies that may be flagged, which is the point of its
    curve from which it flags. None is the point that its package serves with."""
    api_key_env: str = "WALTZRL_FEEDBACK_KEY"
    """Environment variable with the API key of `server`."""
    vision: bool = False
    """The model on `server` sees images: it gets those of clients whose `media` is review."""

    def __post_init__(self) -> None:
        if self.vision and self.server is None:
            raise ValueError("a feedback model with vision must be on a server; set its URL")
        if self.guard is not None and self.server is None:
            raise ValueError(f"a {self.guard} model must be on a server; set its URL")
        if self.guard is not None and (self.vision or self.model.startswith(REVIEWER)):
            raise ValueError(
                f"guard = {self.guard!r} is for a model on a server that reads text; leave "
                f"out vision, and name no {REVIEWER}NAME"
            )
        if self.false_alarms is not None and not self.model.startswith(REVIEWER):
            raise ValueError(
                "false_alarms is for a classifier, whose model is reviewer:NAME; choose the "
                "threshold of another model with `threshold`"
            )
