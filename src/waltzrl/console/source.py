"""What the desk shows and steers: all of it shared by the replicas, but for the audit log."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from waltzrl.audit.note import PublicKey
from waltzrl.memory.safety import SafetyMemory
from waltzrl.release.book import ReleaseBook


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """This gateway's own log."""

    folder: Path
    key: PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSource:
    """Where the desk looks; every call blocks."""

    memory: SafetyMemory
    releases: ReleaseBook
    redact: Callable[[str], str]
    """Takes personal data out of a text: of what viewers see, and of what is written here."""
    audit: AuditLog | None = None
    """None when nothing is audited."""
