"""Opens the memory: to keep what is served, or to learn from what was.

config, keys -> engine, redaction, digest -> MemoryStore -> SafetyMemory
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict

from waltzrl.store.database import Engine, existing_database
from waltzrl.store.memory.erasure import bind_key
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.settings import MemoryConfig
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.privacy.digest import key_in, subject_digest
from waltzrl.store.privacy.opening import open_redaction


def open_memory(
    config: MemoryConfig,
    categories: Mapping[str, str],
    engine: Engine,
    scrub: Callable[[str], str],
) -> SafetyMemory:
    """Return the memory in a database, after creating missing tables.

    Args:
        config: the key of digests and the retention.
        categories: rule id -> category, of the stage-1 rules.
        engine: of the database.
        scrub: of the redaction rules.

    Raises:
        InputError: the key of digests cannot be read or made, or is not this memory's.
        StorageError: the database is unavailable.
    """
    digest = subject_digest(key_in(config.subject_key))
    store = MemoryStore(engine, scrub=scrub)
    # The digest of the empty name marks the key without revealing it.
    bind_key(engine, digest(""), config.subject_key)
    return SafetyMemory(store, digest, asdict(config.retention_days), categories)


@contextmanager
def existing_memory(url: str) -> Iterator[SafetyMemory]:
    """Open a gateway's memory to learn from it, for the duration of the block.

    Raises:
        InputError: it does not exist.
        StorageError: the database is unavailable.
    """
    engine = existing_database(url)
    days = asdict(MemoryConfig(url=url).retention_days)
    try:
        store = MemoryStore(engine, scrub=open_redaction().scrub)
        yield SafetyMemory(store, _refuse_to_digest, days, {})
    finally:
        engine.dispose()


def _refuse_to_digest(subject: str) -> str:
    raise AssertionError("subjects of stored records are digests already")
