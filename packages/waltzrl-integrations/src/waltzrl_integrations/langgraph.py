"""Our store as LangGraph's: `graph.compile(store=as_base_store(store))`."""

from collections.abc import Iterable
from dataclasses import asdict

from waltzrl.errors import MissingExtraError
from waltzrl.store.memory import items as ours
from waltzrl.store.memory.store import MemoryStore

try:
    from langgraph.store import base as theirs
except ModuleNotFoundError as missing:
    raise MissingExtraError(
        "a store for LangGraph", "langgraph-checkpoint", "langgraph"
    ) from missing


def as_base_store(store: MemoryStore) -> theirs.BaseStore:
    """Return `store` as LangGraph's own type, on the same database."""
    return _Store(store)


class _Store(theirs.BaseStore):
    supports_ttl = True

    def __init__(self, store: MemoryStore) -> None:
        self._store = store

    def batch(self, ops: Iterable[theirs.Op]) -> list[theirs.Result]:
        return [
            _convert_result(result) for result in self._store.batch([_convert_op(op) for op in ops])
        ]

    async def abatch(self, ops: Iterable[theirs.Op]) -> list[theirs.Result]:
        return [
            _convert_result(result)
            for result in await self._store.abatch([_convert_op(op) for op in ops])
        ]


def _convert_op(op: theirs.Op) -> ours.Op:
    match op:
        case theirs.GetOp():
            return ours.GetOp(*op)
        case theirs.SearchOp():
            return ours.SearchOp(*op)
        case theirs.PutOp():
            return ours.PutOp(*op)
        case theirs.ListNamespacesOp():
            conditions = tuple(ours.MatchCondition(*match) for match in op.match_conditions or ())
            return ours.ListNamespacesOp(conditions, op.max_depth, op.limit, op.offset)


def _convert_result(result: ours.Result) -> theirs.Result:
    if isinstance(result, ours.Item):
        fields = asdict(result)
        del fields["score"]  # which only the results of a search have there
        return theirs.Item(**fields)
    if result is None:
        return None
    items = [theirs.SearchItem(**asdict(item)) for item in result if isinstance(item, ours.Item)]
    # An empty list is the same for items and for namespaces.
    return items or [namespace for namespace in result if isinstance(namespace, tuple)]
