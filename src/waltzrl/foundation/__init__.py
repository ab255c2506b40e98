"""The folder, files and metrics of a run, independent of the domain."""

from waltzrl.foundation.journal import Journal
from waltzrl.foundation.run_directory import RunDirectory

__all__ = ["Journal", "RunDirectory"]
