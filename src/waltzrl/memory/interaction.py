"""What the gateway tells of one choice that it served, before anything of it is kept."""

from typing import Literal

import msgspec

from waltzrl.records import Collaboration

Arm = Literal["", "serving", "candidate", "shadow"]
"""Who answered while a release was under way; empty when none was. A shadow's answer was never
seen by anybody."""


class Interaction(msgspec.Struct, frozen=True, kw_only=True):
    """One choice that was served, or could not be."""

    id: str
    """Of the request; of a request's second choice `ID/2`, and of a shadow's `ID/shadow`."""
    time: float
    """Seconds since the epoch, when it was asked: who is erased meanwhile is not remembered."""
    who: str = ""
    """Name of the client's key."""
    subject: str = ""
    """The client's own name for its user. Only its digest is ever kept."""
    may_learn: bool = True
    """Whether the agents may learn from it."""
    api: str = ""
    model: str = ""
    mode: str = ""
    bundle: str = ""
    stage: int = 0
    arm: Arm = ""
    release: str = ""
    """Id of the release under way."""
    decision: Literal["draft", "revised", "refused", "error"] = "error"
    reason: str = ""
    """Why, in words that hold no content: of an error its kind."""
    milliseconds: float = 0.0
    """Wall time of the choice."""
    collaboration: Collaboration | None = None
    """None when there was no answer."""
