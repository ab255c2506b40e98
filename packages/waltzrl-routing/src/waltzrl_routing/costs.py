"""What the reviews and revisions of routed tasks cost."""

from waltzrl.budget import Charge, Ledger, PriceBook, priced_replies
from waltzrl_routing.runner import EndedTask


class TaskCosts:
    """Charges tasks to a ledger.

    Example:
        costs = TaskCosts(Ledger(Path("runs/plans/ledger.jsonl")), PriceBook(), server=None)
        executor.observers.append(costs.add)
    """

    def __init__(self, ledger: Ledger, prices: PriceBook, server: str | None) -> None:
        """Price what the guard's agents wrote; what `execute` costs only the program knows.

        Args:
            ledger: is appended to.
            prices: of models.
            server: URL of the agents' server; None in this process.
        """
        self._ledger, self._prices, self._server = ledger, prices, server

    def add(self, ended: EndedTask) -> None:
        """Charge a task that was reviewed; a reply whose tokens nobody counted is marked.

        Raises:
            InputError: the ledger cannot be written.
        """
        if ended.collaboration is None:
            return
        items = tuple(
            self._prices.item(role, reply.usage, self._server)
            for role, reply in priced_replies(ended.collaboration)
        )
        if items:
            id_ = ended.collaboration.prompt.id
            self._ledger.append(Charge(id=id_, activity="routing", items=items))
