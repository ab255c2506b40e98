"""Public sets, read from a local copy of the files that their authors publish."""
