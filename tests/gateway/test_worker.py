"""A worker of the gateway, as its supervisor sees it; run in a process without threads."""

import asyncio
import os
import socket
import subprocess
import sys

import msgspec
import pytest

from waltzrl.foundation.families import Family
from waltzrl.gateway.processes.worker_process import (
    WorkerMessage,
    WorkerProcess,
    WorkerSetup,
    read_families,
    read_message,
)

SUPERVISOR = """
import os, select, socket
import msgspec
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.processes.worker import serve_as_worker
from waltzrl.gateway.processes.worker_process import GatewayMemory, WorkerMessage, WorkerSetup
from waltzrl.gateway.processes.worker_process import read_families, read_message
from waltzrl.gateway.settings import GatewayRecipe, recipe_table

ours, theirs = socket.socketpair()
worker = os.fork()
if worker == 0:
    ours.close()
    serve_as_worker(theirs)
    os._exit(0)
theirs.close()
listener, memory = socket.create_server(("127.0.0.1", 0)), GatewayMemory()
recipe = validate_table(GatewayRecipe, {"upstream": {"url": "http://127.0.0.1:9/v1"}}, "a test")
setup = WorkerSetup(
    recipe=msgspec.Raw(msgspec.json.encode(recipe_table(recipe))),
    number=0, log_number=0, public_key="", open_to_all=False,
)
socket.send_fds(
    ours, [msgspec.json.encode(setup) + b"\\n"], [listener.fileno(), memory.descriptor]
)
lines = ours.makefile("rb")
assert read_message(lines.readline()).kind == "ready"
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", SUPERVISOR + code],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.promise(
    "Operation", "Several workers serve one port, and each tells the metrics of all"
)
def test_a_worker_that_has_ended_waits_until_its_last_report_was_read():
    """A supervisor that writes to it meanwhile does not get an error before the report."""
    run("""
ours.sendall(WorkerMessage(kind="stop").line)
last = read_message(lines.readline())
assert "waltzrl_requests" in {family.name for family in read_families(last.families)}
assert lines.readline() == b""
ours.sendall(WorkerMessage(kind="report").line)
lines.close()
ours.close()
assert os.waitpid(worker, 0)[1] == 0
""")


@pytest.mark.slow
def test_a_worker_stops_with_a_supervisor_that_was_killed_with_something_unread():
    run("""
ours.sendall(WorkerMessage(kind="report").line)
select.select([ours], [], [])
lines.close()
ours.close()
assert os.waitpid(worker, 0)[1] == 0
""")


@pytest.mark.slow
def test_a_reload_while_many_workers_still_finish_their_requests_is_refused_in_words():
    code = """
import asyncio, logging, os, signal, socket
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.processes.fork_server import ForkServer
from waltzrl.gateway.processes.supervisor import Supervisor
from waltzrl.gateway.processes.worker_process import WorkerMessage
from waltzrl.gateway.settings import GatewayRecipe

def work(control):  # until it is to stop, also when it is to retire: it has a long request
    lines = control.makefile("rb")
    lines.readline()
    control.sendall(WorkerMessage(kind="ready").line)
    while b'"stop"' not in lines.readline():
        pass

class Reloading(logging.Handler):
    def emit(self, record):
        if record.levelno == logging.ERROR:
            print(record.getMessage())
        if record.levelno == logging.ERROR or "reloaded" in record.msg:
            os.kill(os.getpid(), signal.SIGHUP if "reloaded: " in record.msg else signal.SIGTERM)

server = ForkServer(work)
logging.basicConfig(level=logging.INFO, handlers=[Reloading()])
recipe = {"upstream": {"url": "http://127.0.0.1:9/v1"}, "workers": 32}
recipe = validate_table(GatewayRecipe, recipe, "a test")
supervisor = Supervisor(
    lambda: recipe, socket.create_server(("127.0.0.1", 0)), server, open_to_all=False,
    announce=lambda *_: os.kill(os.getpid(), signal.SIGHUP),
)
asyncio.run(supervisor.run(recipe))
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.stdout, done.stderr) == (
        "the recipe was not reloaded, and the earlier one serves on: 64 workers run, with those "
        "that still finish their requests; try again when some of these have ended\n",
        "",
    )


COUNTED = Family("waltzrl_requests", "Requests.", "counter", [("waltzrl_requests_total", {}, 7.0)])


async def report_when_asked(control):
    """Be a worker that serves at once, and answers nothing but requests for its metrics."""
    reader, writer = await asyncio.open_connection(sock=control)
    await reader.readline()
    writer.write(WorkerMessage(kind="ready").line)
    report = WorkerMessage(kind="report", families=msgspec.Raw(msgspec.json.encode([COUNTED])))
    try:
        while line := await reader.readline():
            assert read_message(line).kind == "report"
            writer.write(report.line)
    finally:
        writer.close()


def test_a_worker_that_was_asked_for_metrics_while_it_started_tells_them_later():
    """A scrape comes while a recipe is reloaded."""
    setup = WorkerSetup(
        recipe=msgspec.Raw(b"{}"), number=0, log_number=0, public_key="", open_to_all=False
    )

    async def supervise():
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(report_when_asked(theirs))
        worker = WorkerProcess(os.getpid(), ours)
        starting = asyncio.create_task(worker.start(setup, [], lambda _: None))
        await worker.report()
        before = read_families(worker.families)
        await starting
        await worker.report()
        serving.cancel()
        await worker.ended.wait()
        return before, read_families(worker.families)

    assert asyncio.run(supervise()) == ([], [COUNTED])
