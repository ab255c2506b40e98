"""What was served, remembered: one namespaced store, on SQLite or PostgreSQL."""

import waltzrl.storage.database  # noqa: F401 - first, so that a missing extra is named
