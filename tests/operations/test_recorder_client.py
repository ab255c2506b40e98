"""Telling the recorder never waits, and what a recorder does not finish the next one does."""

import asyncio
import dataclasses
import os
import signal
import sys
from pathlib import Path

import pytest
import uvloop
from msgspec.structs import replace

from support.databases import database_url, postgres_server, postgres_url, sqlite_url
from support.recorders import at, config
from support.served_examples import PROMPT, SAFE, UNSAFE, failed, reply, served
from support.timing import until
from waltzrl.operations.online.recorder_client import RecorderClient
from waltzrl.operations.online.recorder_opening import COMMAND
from waltzrl.operations.online.recorder_protocol import (
    RecorderReport,
    decode_exchange,
    encode_frame,
)

__all__ = ["database_url", "postgres_server", "postgres_url", "sqlite_url"]

RECORDER = (sys.executable, str(Path(__file__).parents[1] / "support/recorder_process.py"))
ASLEEP = (sys.executable, "-c", "import time; time.sleep(60)")


def telling(command, do, about=None, **more):
    """Run `do(client)` beside a recorder, and return what holds in the end."""
    about = about or {"key": 1}

    async def tell():
        client = RecorderClient(command, about, may_learn=True)
        async with client.running(**more):
            await do(client)
        return client

    return uvloop.run(tell())  # the gateway's loop


def numbered(number, model="llama"):
    """Serve request wzNUMBER."""
    one = served((SAFE, None))
    prompt = dataclasses.replace(PROMPT, id=f"wz{number}")
    collaboration = dataclasses.replace(one.exchange.collaboration, prompt=prompt)
    exchange = replace(one.exchange, id=prompt.id, model=model, collaboration=collaboration)
    return replace(one, exchange=exchange)


def children(argument):
    """Return the processes that this one has started with an argument."""
    me = os.getpid()
    found = Path(f"/proc/{me}/task/{me}/children").read_text().split()
    return [int(c) for c in found if argument.encode() in Path(f"/proc/{c}/cmdline").read_bytes()]


def child(others):
    """Return the recorder that this process has started, beside others that still end."""
    (one,) = set(children(COMMAND[-1])) - set(others)
    return one


def ids(file):
    """Return the ids that all recorders read, in their order."""
    return [line for line in file.read_text().splitlines() if line.startswith("wz")]


def pids(file):
    lines = file.read_text().splitlines() if file.exists() else []
    return [int(line.split()[1]) for line in lines if line.startswith("pid")]


def test_what_was_served_comes_through_the_pipe_whole():
    exchange = served((UNSAFE, reply(9.0)), decision="revised", reason="unsafe").exchange
    assert decode_exchange(encode_frame(exchange)[4:]) == exchange
    assert (
        decode_exchange(encode_frame(failed("upstream").exchange)[4:])
        == failed("upstream").exchange
    )


@pytest.mark.parametrize(
    ("asked", "operator", "may"),
    [(None, True, True), (None, False, False), (True, False, True), (False, True, False)],
)
def test_the_operator_says_what_may_be_learnt_from_where_nobody_else_does(asked, operator, may):
    one = served((SAFE, None))
    client = RecorderClient((), {}, may_learn=operator)
    client.served(replace(one, exchange=replace(one.exchange, may_learn=asked)))
    (waiting,) = client._waiting
    assert decode_exchange(waiting[4:]).may_learn is may


def test_lone_surrogates_come_through():
    said = replace(served((SAFE, None)).exchange, model="half \ud83d")
    assert decode_exchange(encode_frame(said)[4:]) == said


def test_the_recorder_is_told_its_settings_first_and_everything_once_in_order(tmp_path):
    file = tmp_path / "told"

    async def do(client):
        for number in range(500):
            client.served(numbered(number))
            if number % 100 == 0:
                await asyncio.sleep(0.01)

    now = telling([*RECORDER, str(file)], do)
    assert file.read_text().splitlines()[0].endswith('{"key":1}')
    assert ids(file) == [f"wz{number}" for number in range(500)]
    assert file.read_text().endswith("end\n")
    assert (now.accepted, now.dropped, now.pending, now.restarts) == (500, 0, 0, 0)
    assert now.report == RecorderReport(stored=500)


def test_a_killed_recorder_loses_nothing(tmp_path):
    file = tmp_path / "told"

    async def do(client):
        for number in range(400):
            client.served(numbered(number))
            await asyncio.sleep(0.002)
            if number in (100, 250):
                await until(lambda: len(pids(file)) == client.restarts + 1)
                os.kill(pids(file)[-1], signal.SIGKILL)

    now = telling([*RECORDER, str(file)], do)
    assert (now.restarts, now.dropped, now.pending) == (2, 0, 0)
    assert set(ids(file)) == {f"wz{number}" for number in range(400)}


def test_a_killed_recorder_has_lost_nothing_in_the_database(database_url, tmp_path):
    others = children(COMMAND[-1])  # of gateways that earlier tests opened in this process

    async def do(client):
        for number in range(2000):
            client.served(numbered(number))
            await asyncio.sleep(0.001)
            if number in (700, 1400):
                await until(lambda: client.report.stored)
                os.kill(child(others), signal.SIGKILL)
        # Two recorders were started anew: on a busy machine that takes longer than a stop waits.
        await until(lambda: not client.pending)

    now = telling(COMMAND, do, config(database_url, tmp_path).to_json())
    assert (now.accepted, now.restarts, now.dropped, now.pending) == (2000, 2, 0, 0)
    assert set(at(database_url)) == {f"wz{number}" for number in range(2000)}


def test_what_three_recorders_died_over_is_given_up_and_counted(tmp_path):
    file = tmp_path / "told"

    async def do(client):
        client.served(numbered(0, model="poison"))
        await until(lambda: client.restarts == 3)
        for number in range(1, 10):
            client.served(numbered(number))

    now = telling([*RECORDER, str(file), "poison"], do)
    assert (now.restarts, now.dropped, now.pending) == (3, 1, 0)
    assert ids(file) == [f"wz{number}" for number in range(1, 10)]


def test_a_recorder_that_reads_nothing_holds_nobody_up():
    one = numbered(0)

    async def do(client):
        for _ in range(20):
            for _ in range(1000):
                client.served(one)  # if it waited for the pipe, the test would not end
            await asyncio.sleep(0)

    now = telling(ASLEEP, do, finish_seconds=0.2)
    assert (now.accepted, now.dropped, now.pending) == (10_000, 10_000, 10_000)


def test_what_waits_is_bounded_in_bytes_too():
    one = numbered(0, model="m" * 2**20)

    async def do(client):
        for _ in range(100):
            client.served(one)

    now = telling(ASLEEP, do, finish_seconds=0.2)
    assert (now.accepted, now.dropped) == (64, 36)


@pytest.mark.parametrize("passes", range(12))
def test_a_recorder_that_was_only_being_started_does_not_stay(passes):

    async def start():
        client = RecorderClient([*ASLEEP, "left-behind"], {}, may_learn=True)
        running = asyncio.create_task(client.run())
        for _ in range(passes):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await until(lambda: not children("left-behind"))

    uvloop.run(start())


def test_a_recorder_that_cannot_be_started_is_told_and_holds_nobody_up(caplog):

    async def do(client):
        client.served(numbered(0))
        await until(lambda: "cannot be started" in caplog.text)

    now = telling(["/nowhere/recorder"], do, finish_seconds=0.2)
    assert (now.accepted, now.pending) == (1, 1)
    assert "cannot be started" in caplog.text
    assert "1 exchanges may be lost" in caplog.text
