"""Attackers who adapt to what a target replies, and what they gain over the plain request."""
