"""Readiness: what each part of the gateway reports.

`/readyz` only reads what traffic and probes have shown; it sends nothing itself.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

import msgspec

HealthStatus = Literal["ok", "degraded", "down"]


@dataclass(frozen=True, slots=True)
class Health:
    """The state of one part. A gateway with a part that is down is not ready."""

    status: HealthStatus
    detail: str = ""
    """The reason why it is not ok; no content and no address, because `/readyz` needs no key."""


OK = Health("ok")
Check: TypeAlias = Callable[[], Health]
"""Returns the state of a part at once; called at every `/readyz`."""


def report_readiness(checks: Mapping[str, Check]) -> tuple[int, bytes]:
    """Return the status and the body of `/readyz`, of checks by the names of their parts."""
    parts = {name: check() for name, check in checks.items()}
    states = {part.status for part in parts.values()}
    down = "down" in states
    status = "not ready" if down else "degraded" if "degraded" in states else "ready"
    return (503 if down else 200), msgspec.json.encode({"status": status, "checks": parts})
