"""The Chromium that the tests drive, and what else `make test` installs from npm."""

import os
import shutil
from pathlib import Path

NPM = Path(__file__).parents[2] / ".venv/npm"
NODE_MODULES = NPM / "node_modules"
AXE = NODE_MODULES / "axe-core/axe.min.js"
FLAGS = (
    "--headless",
    "--no-sandbox",  # Chromium refuses to run as root with it
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def find_chromium():
    """Return the path of a Chromium: WALTZRL_CHROMIUM, the one from npm, the system's, or None."""
    if chosen := os.environ.get("WALTZRL_CHROMIUM"):
        return chosen
    candidates = (NPM / "chromium", "chromium", "chromium-browser", "google-chrome")
    return next(filter(None, map(shutil.which, candidates)), None)


def violations(page, rules=None):
    """Return every rule of axe-core that a page violates, or every one of some, and where."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    chosen = "axe.run()" if rules is None else f"axe.run({{runOnly: {rules}}})"
    violated = page.evaluate(chosen)["violations"]
    return [(rule["id"], node["html"][:200]) for rule in violated for node in rule["nodes"]]
