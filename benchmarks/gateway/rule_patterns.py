"""Print our rules as NeMo Guardrails' regular-expression rails: JSON, input and output apart."""

import json
import re

from waltzrl.agents.rules import load_rulebook

RAILS = {"request": "input", "reply": "output", "refusal": "output"}
"""Rules of the other sides, words of support in a crisis and the like, flag nothing alone."""


def main() -> None:
    """Print the rails; every pattern must mean something to Python's `re`."""
    rails: dict[str, list[str]] = {"input": [], "output": []}
    for rule in load_rulebook().rules:
        for pattern in rule.patterns:
            re.compile(pattern.regex)
            if rule.side in RAILS:
                rails[RAILS[rule.side]].append(pattern.regex)
    said = {
        side: {"patterns": patterns, "case_insensitive": True} for side, patterns in rails.items()
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
