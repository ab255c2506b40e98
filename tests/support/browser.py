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


def violations(page):
    """Return every rule of axe-core that a page violates, and where."""
    page.evaluate(AXE.read_text())
    rules = page.evaluate("axe.run()")["violations"]
    return [(rule["id"], node["html"][:200]) for rule in rules for node in rule["nodes"]]
