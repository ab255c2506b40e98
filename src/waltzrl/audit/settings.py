"""How a log is kept."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from waltzrl.records import Collaboration


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What the operator decides about a log; only `on_failure` must be."""

    on_failure: Literal["refuse", "serve"]
    """What to do while the disk fails: refuse requests, or answer them unaudited and count."""
    contents: Callable[[Collaboration], Collaboration] | None = None
    """Keep beside the log what this leaves of what was said, to replay it; None keeps none of it.
    It is called in the writer's thread."""
    commit_seconds: float = 0.05
    """How long an accepted record may be in memory only."""
    commit_records: int = 256
    """Waiting records that start a commit at once."""
    checkpoint_records: int = 1000
    checkpoint_seconds: float = 10.0
    segment_bytes: int = 64 << 20
    """From this size on a new file is begun."""
    queue_records: int = 10_000
    """Records that may wait for a slow disk; with more, `on_failure` decides."""
