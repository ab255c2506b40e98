"""Public sets, read from a local copy of the files that their authors publish."""

from waltzrl.evaluation.data.importers.sets import SETS, find_set, import_set, require_set

__all__ = ["SETS", "find_set", "import_set", "require_set"]
