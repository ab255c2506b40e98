"""The folder, files and metrics of a run, independent of the domain."""

from waltzrl.telemetry.journal import Journal
from waltzrl.telemetry.run_directory import RunDirectory

__all__ = ["Journal", "RunDirectory"]
