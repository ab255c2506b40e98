"""What a recipe says of costs."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """What requests cost, and the daily budgets of API keys."""

    folder: Path
    """The folder of the ledger, one file a day (UTC); gateways that share it share the budgets."""
