"""Erasure of a person across the memory, exports and audit logs, with a final check."""
