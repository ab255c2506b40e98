"""The Chromium that the tests drive, and what else `make test` installs from npm."""

import asyncio
import os
import shutil
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import uvicorn

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


@contextmanager
def served(desk):
    """Serve a desk on a free port; give its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(desk, lifespan="off", log_level="warning", ws="none"))
    thread = threading.Thread(target=lambda: asyncio.run(server.serve([listener])))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def violations(page, rules=None):
    """Return every rule of axe-core that a page violates, or every one of some, and where."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text())
    chosen = "axe.run()" if rules is None else f"axe.run({{runOnly: {rules}}})"
    violated = page.evaluate(chosen)["violations"]
    return [(rule["id"], node["html"][:200]) for rule in violated for node in rule["nodes"]]
