"""Which bundle serves whom: shadow, canary, full, or back at once, by evidence."""
