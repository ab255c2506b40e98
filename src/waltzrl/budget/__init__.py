"""What work costs: prices, an append-only ledger, a meter with a cap, and sums of it.

Training has a meter, serving a `ServingMeter`; an evaluation's rows are its ledger.
"""

from waltzrl.budget.ledger import (
    LEDGER,
    Charge,
    ChargeItem,
    Ledger,
    LedgerContents,
    ledgers_in,
    read_ledger,
)
from waltzrl.budget.meter import BudgetSettings, CostMeter
from waltzrl.budget.prices import ModelPrice, PriceBook, priced_replies
from waltzrl.budget.report import GROUPS, Total, total, totals

__all__ = [
    "GROUPS",
    "LEDGER",
    "BudgetSettings",
    "Charge",
    "ChargeItem",
    "CostMeter",
    "Ledger",
    "LedgerContents",
    "ModelPrice",
    "PriceBook",
    "Total",
    "ledgers_in",
    "priced_replies",
    "read_ledger",
    "total",
    "totals",
]
