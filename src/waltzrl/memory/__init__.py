"""What was served, remembered: one namespaced store, on SQLite or PostgreSQL."""

import waltzrl.storage.database  # noqa: F401 - says which extra is missing
