"""What a recipe says of the audit log."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

Days = Annotated[float, Field(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditConfig:
    """The audit log of every decision."""

    folder: Path
    """Folder of the log, created if missing; every gateway needs its own."""
    key: Path | None = None
    """File of the log's private key, created if missing; None is FOLDER.key beside the folder."""
    contents: bool = False
    """True keeps the texts too, without personal data, so that decisions can be replayed."""
    contents_days: Days = 200.0
    """The time for which the texts are kept; the log itself is never shortened."""
    on_failure: Literal["refuse", "serve"] = "refuse"
    """The behaviour when the log cannot be written: refuse requests, or serve unaudited replies and
    count them."""
