"""What was served, remembered: one namespaced store, on SQLite or PostgreSQL."""
