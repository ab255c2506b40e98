"""Two gateways on one PostgreSQL: what fails loses no record, and a rollback reaches both."""

import asyncio
import os
import signal
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from support.databases import postgres_server, postgres_url
from support.gateway_processes import gateway_process, upstream_process
from support.recorders import at
from support.timing import until, wait_until
from waltzrl.gateway.settings import load_gateway
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.opening import propose_release
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.database import open_database

__all__ = ["postgres_server", "postgres_url"]

pytestmark = pytest.mark.xdist_group("faults")

CHAT = "/v1/chat/completions"
WINDOW = 40
"""Answers that a killed gateway may not have handed over: ten of each of its clients."""
PAUSE_SECONDS = 0.02
"""Between a client's requests, so that recorders keep up: who finds no room is another matter."""
EVERYBODY = ReleasePlan(
    name="everybody",
    shadow=None,
    canary=(ReleaseStep(percentage=100, seconds=3600, samples=10**6),),
    targets=ReleaseLimits(unsafe=0.05, overrefusal=0.1),
    limits=ReleaseLimits(unsafe=0.1, overrefusal=0.15),
)


@pytest.fixture(scope="module")
def upstream():
    with upstream_process() as server:
        yield server


@pytest.fixture
def gateways(upstream, postgres_url, tmp_path):
    """Run two gateways with one memory."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                gateway_process(
                    *("--upstream", f"{upstream.url}/v1", "--memory", postgres_url),
                    *("--set", f"memory.subject_key={tmp_path}/subjects.key"),
                    *("--set", "memory.niceness=0"),
                    *("--audit", str(tmp_path / f"audit{number}")),
                    log=tmp_path / f"gateway{number}.log",
                )
            )
            for number in (1, 2)
        ]


class Answer(NamedTuple):
    gateway: int
    asked: int
    """Answers that had come before its request was sent."""
    id: str
    decision: str


@asynccontextmanager
async def load(gateways, model):
    """Keep gateways busy beside the block, with four clients each; yield all answers so far."""
    answers, stop = [], asyncio.Event()

    async def client(session, number, url):
        while not stop.is_set():
            asked = len(answers)
            words = [{"role": "user", "content": f"hi {asked}"}]
            try:
                async with session.post(url, json={"model": model, "messages": words}) as response:
                    await response.read()
                    named = response.headers
            except aiohttp.ClientError:
                return  # its gateway was killed
            if response.status == 503:
                return  # its gateway was killed, and the worker stops
            done = (named["x-request-id"], named["x-waltzrl-decision"])
            answers.append(Answer(number, asked, *done))
            await asyncio.sleep(PAUSE_SECONDS)

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for number, gateway in enumerate(gateways):
            for _ in range(4):
                group.create_task(client(session, number, gateway.url + CHAT))
        yield answers
        stop.set()


def by(number, answers):
    """Return the ids of a gateway's answers in their order."""
    return [one.id for one in answers if one.gateway == number]


def recorders_of(gateway):
    """Return the recorders that a gateway has started."""
    return [Path(f"/proc/{pid}") for pid in gateway.recorders()]


def test_a_gateway_says_where_its_desk_is(gateways, tmp_path):
    words = (tmp_path / "gateway1.log").read_text()
    assert f"clients use {gateways[0].url}/v1, reviewers {gateways[0].url}/desk" in words


def test_whichever_gateway_is_killed_what_it_answered_is_remembered(gateways, postgres_url):
    async def story():
        async with load(gateways, "echo") as answers:
            for number, gateway in enumerate(gateways):
                await until(lambda number=number: len(by(number, answers)) > 100 + WINDOW)
                (recorder,) = recorders_of(gateway)
                gateway.process.kill()
                await until(lambda recorder=recorder: not recorder.exists())
        return answers

    answers = asyncio.run(story())
    kept = at(postgres_url)
    for number in range(2):
        assert set(by(number, answers)[:-WINDOW]) <= set(kept)
    answered = {one.id for one in answers}
    assert all(kept[one].collaboration is not None for one in answered & kept.keys())


def test_whichever_recorder_is_killed_all_that_was_answered_is_remembered(gateways, postgres_url):
    async def story():
        async with load(gateways, "echo") as answers:
            for gateway in gateways * 2:
                enough = len(answers) + 50
                await until(lambda enough=enough: len(answers) > enough)
                (recorder,) = recorders_of(gateway)
                os.kill(int(recorder.name), signal.SIGKILL)
                await until(lambda recorder=recorder: not recorder.exists())
                await until(lambda gateway=gateway: recorders_of(gateway))
        return {one.id for one in answers}

    answered = asyncio.run(story())
    # On a busy machine a new recorder takes longer to start than a gateway's stop waits.
    wait_until(lambda: answered <= set(at(postgres_url)))
    for gateway in gateways:
        gateway.process.terminate()
        assert gateway.process.wait(60) == 0
    assert len(answered) > 200
    assert set(at(postgres_url)) == answered


def test_both_gateways_follow_a_rollback_for_good(gateways, upstream, postgres_url, tmp_path):
    engine = open_database(postgres_url)
    book = ReleaseBook(engine)
    ours = load_gateway(None, {"upstream": {"url": f"{upstream.url}/v1"}}, ["enabled=false"], {})
    release = propose_release(book, ours.bundle, EVERYBODY, "ada", "to see it go back")

    async def story():
        async with load(gateways, "unsafe") as answers:

            def all_by(decision):
                last = {one.gateway: one.decision for one in answers}
                return list(last.values()) == [decision] * 2

            await until(lambda: all_by("draft"))  # the candidate reviews nothing
            await asyncio.to_thread(book.move, release, "roll_back", "ada", "seen enough")
            await until(lambda: all_by("revised"))
            followed = len(answers)
            await until(lambda: len(answers) > followed + 100)
        return [one for one in answers if one.asked >= followed]

    after = asyncio.run(story())
    engine.dispose()
    assert {(one.gateway, one.decision) for one in after} == {(0, "revised"), (1, "revised")}
    for gateway in gateways:
        gateway.process.terminate()
        assert gateway.process.wait(60) == 0
    for number in (1, 2):
        told = [entry.notice for entry in read_entries(tmp_path / f"audit{number}") if entry.notice]
        assert [one["state"] for one in told] == ["canary", "rolled_back"]
