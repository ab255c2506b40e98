"""Similarity of meaning: a vector an item, compared by its cosine. Needs the extra `vectors`."""

from collections.abc import Sequence
from typing import Protocol

from sqlalchemy import Connection, select

from waltzrl.errors import MissingExtraError
from waltzrl.memory.items import Namespace, SearchItem
from waltzrl.memory.search import COLUMNS, alive, search_item_of, within
from waltzrl.memory.tables import ITEMS, VECTORS


class Embed(Protocol):
    """Turns texts into vectors."""

    def __call__(self, texts: Sequence[str]) -> Sequence[Sequence[float]]:
        """Return one vector a text, all of one length."""
        ...


def packed(vectors: Sequence[Sequence[float]]) -> list[bytes]:
    """Return each vector as float32, of length 1.

    Raises:
        MissingExtraError: numpy is not installed.
    """
    try:
        import numpy as np
    except ModuleNotFoundError as missing:
        raise MissingExtraError("search by vectors", "numpy", "vectors") from missing
    rows = np.asarray(vectors, dtype=np.float32)
    lengths = np.linalg.norm(rows, axis=-1, keepdims=True)
    return [row.tobytes() for row in rows / np.maximum(lengths, 1e-12)]


def nearest(
    connection: Connection, namespace: Namespace, vector: bytes, limit: int, now: float
) -> list[SearchItem]:
    """Return the items under a namespace whose vectors point most nearly where `vector` does.

    The score is the cosine, -1 to 1. Every vector under the namespace is read.
    """
    import numpy as np

    held = select(VECTORS).join(ITEMS).where(within(namespace), alive(now))
    rows = [row for row in connection.execute(held) if len(row.vector) == len(vector)]
    if not rows:
        return []
    matrix = np.frombuffer(b"".join(row.vector for row in rows), dtype=np.float32)
    cosines = matrix.reshape(len(rows), -1) @ np.frombuffer(vector, dtype=np.float32)
    best = {
        rows[place].item: float(cosines[place])
        for place in np.argsort(-cosines, kind="stable")[:limit]
    }
    found = connection.execute(select(*COLUMNS).where(ITEMS.c.id.in_(best)))
    items = [search_item_of(row, best[row.id]) for row in found]
    return sorted(items, key=lambda item: -(item.score or 0.0))
