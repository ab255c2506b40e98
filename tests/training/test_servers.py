"""Servers that a process starts, and starts again; a small one stands for vLLM."""

import asyncio
import json
import os
import signal
import sys
import urllib.request
from pathlib import Path

import pytest

from support.timing import until
from waltzrl.errors import InputError
from waltzrl.training.scale.servers import ServerProcess

SERVER = """
import json, os, subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Answer(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([os.getpid(), engine.pid, os.environ["BASE"]]).encode())
engine = subprocess.Popen(["sleep", "1000"])
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
HTTPServer((options["--host"], int(options["--port"])), Answer).serve_forever()
"""


@pytest.fixture
def command(tmp_path):
    (tmp_path / "server.py").write_text(SERVER)
    return f"BASE=tiny {sys.executable} {tmp_path / 'server.py'}"


def answer(url):
    """Return the server's process, that of its engine, and a variable; None if nobody answers."""
    try:
        with urllib.request.urlopen(f"{url}/health") as response:
            return json.load(response)
    except OSError:
        return None


def ended(process):
    """Return whether a process has ended, also if nobody has asked how."""
    status = Path(f"/proc/{process}/stat")
    return not status.exists() or ") Z " in status.read_text()


@pytest.mark.promise(
    "Evaluation",
    "A server that Ray runs is started again at its URL when it is killed, and one that cannot "
    "serve is named with what it said",
)
def test_a_server_that_is_killed_answers_again_at_the_same_url(command, tmp_path):
    async def story():
        place = ServerProcess(tmp_path / "run" / "server.log")
        url = await place.start(command)
        process, engine, variable = answer(url)
        assert variable == "tiny"
        os.kill(process, signal.SIGKILL)
        again, _, _ = await until(lambda: answer(url))
        assert again != process
        await until(lambda: ended(engine))
        return again, await place.start(command), place

    async def whole():
        before, url, place = await story()
        now, engine, _ = answer(url)
        assert now != before  # started anew, for a run that goes on
        assert ended(before)
        await place.stop()
        await until(lambda: ended(engine))
        assert answer(url) is None

    asyncio.run(whole())


def test_a_server_that_cannot_be_started_at_once_is_started_later(command, tmp_path, caplog):
    async def story():
        log = tmp_path / "server.log"
        place = ServerProcess(log)
        url = await place.start(command)
        log.unlink()
        log.mkdir()  # which nobody can write to
        os.kill(answer(url)[0], signal.SIGKILL)
        await until(lambda: "cannot be started, trying again: [Errno 21]" in caplog.text)
        log.rmdir()
        await until(lambda: answer(url))
        await place.stop()

    asyncio.run(story())


@pytest.mark.promise(
    "Evaluation",
    "A server that Ray runs is started again at its URL when it is killed, and one that cannot "
    "serve is named with what it said",
)
def test_a_server_that_cannot_serve_is_named_with_what_it_said(tmp_path):
    place = ServerProcess(tmp_path / "server.log")
    with pytest.raises(InputError) as refused:
        asyncio.run(place.start(f"{sys.executable} -c 'raise SystemExit(\"no such model\")'"))
    assert "ended before it served (no such model); see" in str(refused.value)
