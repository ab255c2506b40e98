"""Erasure of a person's data from every store, export and log, with proof."""
