"""A tamper-evident log of decisions, and its verifier."""
