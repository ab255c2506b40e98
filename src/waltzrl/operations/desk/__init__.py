"""The review desk: the gateway's web pages, to inspect what it serves and to steer a release."""

from waltzrl.errors import MissingExtraError

try:
    from waltzrl.operations.desk.app import Console, open_guest_desk
    from waltzrl.operations.desk.request import AuditLog, ConsoleSource, DrawPlan
except ModuleNotFoundError as missing:
    raise MissingExtraError("the review desk", str(missing.name), "flywheel") from missing

__all__ = ["AuditLog", "Console", "ConsoleSource", "DrawPlan", "open_guest_desk"]
