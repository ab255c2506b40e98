"""The desk: a small website of the gateway, to look at what it serves and to steer the release."""

from waltzrl.console.app import Console
from waltzrl.console.source import AuditLog, ConsoleSource

__all__ = ["AuditLog", "Console", "ConsoleSource"]
