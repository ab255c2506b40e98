"""How many of our files a request visits: docs/architecture.md lists them."""

import asyncio
import re
import sys
from pathlib import Path

import waltzrl
from support.small_gateway import CHAT, HELLO, ask, gateway

PACKAGE = Path(waltzrl.__file__).parent
ARCHITECTURE = Path(__file__).parents[2] / "docs/architecture.md"
AFTER_THE_ANSWER = {
    "gateway/metrics.py",
    "gateway/metric_groups.py",
    "agents/operational.py",
    "gateway/events.py",
    "foundation/counters.py",
    "gateway/model_names.py",
    "gateway/bundles.py",
}
"""They count and log what was decided; the last one knows the models."""
ONLY_WITH_A_SERVER = {"gateway/connection.py", "gateway/server.py"}


def visited_by(work):
    """Return the files of ours in which a function is called while `work` is awaited."""
    files = set()

    def note(frame, event, _argument):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(path.relative_to(PACKAGE).as_posix())

    async def profiled():
        async with gateway() as app:
            await work(app)  # what the first request imports or caches is no part of the path
            sys.setprofile(note)
            try:
                await work(app)
            finally:
                sys.setprofile(None)

    asyncio.run(profiled())
    return files


def test_a_request_visits_twenty_files_of_ours_and_the_documents_list_them():
    body = {"model": "echo", "messages": HELLO}
    visited = visited_by(lambda app: ask(app, CHAT, body)) | ONLY_WITH_A_SERVER
    assert visited >= AFTER_THE_ANSWER
    path = visited - AFTER_THE_ANSWER
    assert len(path) <= 20, sorted(path)
    section = ARCHITECTURE.read_text().partition("## The path of a request")[2]
    assert path <= set(re.findall(r"`([a-z_/]+\.py)`", section))
