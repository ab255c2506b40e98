"""Stage 1: rules as data, and the engine that runs them in linear time."""

from waltzrl.rules.finding import Finding

__all__ = ["Finding"]
