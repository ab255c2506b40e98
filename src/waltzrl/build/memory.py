"""Opens the memory: to keep what is served, or to learn from what was.

address, keys -> engine, policy, digest -> MemoryStore -> SafetyMemory
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from waltzrl.build.redaction import open_redaction
from waltzrl.config.gateway import MemoryConfig
from waltzrl.memory.one_key import bind_key
from waltzrl.memory.safety import SafetyMemory
from waltzrl.memory.store import MemoryStore
from waltzrl.privacy.detection import Kind
from waltzrl.privacy.digest import key_in, subject_digest
from waltzrl.privacy.redaction import Action, RedactionRules
from waltzrl.storage.database import Engine, existing_database


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySettings:
    """How what is served is kept: the same for a gateway and its recorder."""

    database: str
    """URL."""
    subject_key: str
    """File of the key under which subjects are digested; made when missing."""
    privacy: Mapping[Kind, Action] = field(default_factory=dict)
    """What becomes of personal data; kinds that are not named are redacted."""
    privacy_key: str | None = None
    """File of the key of `hash` and `seal`."""
    retention_days: Mapping[str, float] = field(default_factory=dict)
    """By kind of record; what is not named is kept until it is erased."""
    categories: Mapping[str, str] = field(default_factory=dict)
    """Of each stage-1 rule, by its id."""

    def open_digest(self) -> Callable[[str], str]:
        """Return what makes digests of subjects.

        Raises:
            InputError: the key cannot be read or made.
        """
        return subject_digest(key_in(Path(self.subject_key)))

    def open_redaction(self) -> RedactionRules:
        """Return what takes personal data out, as `waltzrl.build.redaction.open_policy` does."""
        key = None if self.privacy_key is None else Path(self.privacy_key)
        return open_redaction(self.privacy, key)


def open_memory(
    settings: MemorySettings, engine: Engine, scrub: Callable[[str], str]
) -> SafetyMemory:
    """Return the memory in a database, whose tables are made when they are missing.

    Args:
        settings: how it is kept.
        engine: of the database.
        scrub: the policy's.

    Raises:
        InputError: the key of digests cannot be read or made, or is not this memory's.
        StorageError: the database does not answer.
    """
    store = MemoryStore(engine, scrub=scrub)
    digest = settings.open_digest()
    bind_key(engine, digest(""), Path(settings.subject_key))
    return SafetyMemory(store, digest, settings.retention_days, settings.categories)


@contextmanager
def existing_memory(url: str) -> Iterator[SafetyMemory]:
    """Open the memory of a gateway to learn from what it kept, and close it behind the block.

    Raises:
        InputError: it is not there.
        StorageError: the database does not answer.
    """
    engine = existing_database(url)
    days = asdict(MemoryConfig(url=url).retention_days)
    try:
        store = MemoryStore(engine, scrub=open_redaction({}, None).scrub)
        yield SafetyMemory(store, _digest_nobody, days, {})
    finally:
        engine.dispose()


def _digest_nobody(subject: str) -> str:
    raise AssertionError("what is learned from has its digests already")
