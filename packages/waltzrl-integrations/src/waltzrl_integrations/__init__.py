"""Adapters for other frameworks, each in a few lines."""
