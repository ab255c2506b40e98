"""The desk: a small website of the gateway, to look at what it serves and to steer the release."""

from waltzrl.serving.desk.desk import Desk
from waltzrl.serving.desk.source import AuditLog, DeskSource

__all__ = ["AuditLog", "Desk", "DeskSource"]
