"""Recipes: TOML, environment variables and overrides as checked, frozen dataclasses."""
