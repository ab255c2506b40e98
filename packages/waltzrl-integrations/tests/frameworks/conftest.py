"""Leaves out the tests of a framework that cannot be installed beside another."""

from importlib.metadata import PackageNotFoundError, distribution

collect_ignore = []
try:
    distribution("openai-guardrails")
except PackageNotFoundError:
    # guardrails-ai, which is installed, is the module guardrails too. Where the other one is:
    # pip install openai-guardrails pytest pytest-timeout; pytest test_openai_guardrails.py
    collect_ignore.append("test_openai_guardrails.py")
