"""Tests of an installed gateway, or of a pair of agents, against the requirement's numbers."""
