"""A tamper-evident log of decisions, and its verifier.

The modules `verify`, `merkle` and `note` verify a log with its folder and public key alone.
"""
