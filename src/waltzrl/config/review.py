"""The part of a bundle's recipe that says what happens when the feedback model has no time."""

from collections.abc import Mapping
from dataclasses import dataclass

from waltzrl.agents.failsafe import OnFailure, OnOverload

OVERLOADS: Mapping[OnFailure, OnOverload] = {
    "refuse": "unavailable",
    "rules": "rules",
    "serve": "pass",
}
"""What `on_failure` means for a model that only has no time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewConfig:
    """How stage 2 reviews under load."""

    on_overload: OnOverload | None = None
    """If the model has no time for a review: `unavailable` answers 503 with Retry-After, `rules`
    lets the rules decide, `pass` sends the reply and records that nobody reviewed it. None is what
    comes closest to `on_failure`: `unavailable` for `refuse`, `rules`, or `pass` for `serve`."""

    def choice(self, on_failure: OnFailure) -> OnOverload:
        return self.on_overload or OVERLOADS[on_failure]
