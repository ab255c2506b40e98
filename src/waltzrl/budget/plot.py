"""The picture of a ledger: what each role has cost over time."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from waltzrl.budget.ledger import Charge
from waltzrl.budget.report import accumulate_costs
from waltzrl.errors import InputError, MissingExtraError
from waltzrl.foundation.files import disk_errors


def draw_costs(charges: Sequence[Charge], path: Path) -> None:
    """Draw the sum of the charges over time, a layer for each role.

    Raises:
        InputError: there are no charges, or the file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    try:
        from matplotlib.dates import date2num
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtraError("the plot", "matplotlib", "report") from error
    if not charges:
        raise InputError("the ledger is empty; nothing to draw")
    steps = list(accumulate_costs(charges))
    roles = sorted(steps[-1][1])
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    times = [date2num(datetime.fromtimestamp(time, UTC)) for time, _ in steps]
    layers = [[spent.get(role, 0.0) for _, spent in steps] for role in roles]
    axes.stackplot(times, layers, labels=roles, step="post")
    axes.xaxis_date(tz="UTC")
    figure.autofmt_xdate()
    axes.set_ylabel("US dollars")
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=len(roles))  # beside the data
    with disk_errors(path):
        figure.savefig(path, format="png", dpi=120)
