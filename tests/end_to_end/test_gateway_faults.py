"""What fails around a real gateway, and that nothing unsafe leaves because of it."""

import asyncio
import json
import subprocess
import time

import aiohttp
import pytest

from support.gateway_processes import gateway_process, upstream_process
from waltzrl.audit import verify
from waltzrl.audit.note import PublicKey

pytestmark = pytest.mark.xdist_group("faults")

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def upstream():
    with upstream_process() as server:
        yield server


@pytest.fixture
def serve(upstream, tmp_path):
    """Return how to run a gateway before the upstream."""

    def run(*arguments, url=f"{upstream.url}/v1", **more):
        log = tmp_path / "gateway.log"
        return gateway_process("--upstream", url, *arguments, log=log, **more)

    return run


def ask(gateway, model, **more):
    status, headers, text = gateway.post(CHAT, {"model": model, "messages": HELLO, **more})
    return status, headers, text


def test_an_upstream_that_dies_in_a_stream_ends_it_with_an_error(serve):
    with serve() as gateway:
        status, _, text = ask(gateway, "dies", stream=True)
    assert status == 200
    last = [line for line in text.splitlines() if line.startswith("data: {")][-1]
    assert "upstream" in json.loads(last.removeprefix("data: "))["error"]["message"]


def test_an_upstream_that_dies_is_a_bad_gateway(serve):
    with serve() as gateway:
        status, _, text = ask(gateway, "dies")
    assert (status, "connection to the upstream" in text) == (502, True)


def test_an_upstream_that_hangs_is_given_up(serve):
    with serve("--set", "upstream.timeout_seconds=0.5") as gateway:
        started = time.monotonic()
        status, _, text = ask(gateway, "hangs")
        assert ask(gateway, "echo")[0] == 200
    assert (status, "sent nothing for 0.5 s" in text) == (504, True)
    assert time.monotonic() - started < 10


def test_rubbish_is_a_bad_gateway(serve):
    with serve() as gateway:
        status, _, text = ask(gateway, "rubbish")
    assert (status, "not a chat completion" in text) == (502, True)


def test_a_busy_upstream_says_when_to_come_back(serve):
    with serve() as gateway:
        status, headers, text = ask(gateway, "busy")
    assert (status, headers["retry-after"]) == (429, "7")
    assert "slow down" in text


def test_an_upstream_that_is_not_there_is_left_alone_after_five_failures(serve):
    with serve(url="http://127.0.0.1:9/v1") as gateway:
        statuses = [ask(gateway, "echo")[0] for _ in range(7)]
        assert gateway.get("/healthz")[0] == 200
    assert statuses == [502] * 5 + [503] * 2


def test_words_that_nobody_reviewed_do_not_pass_beside_the_reply(serve):
    with serve() as gateway:
        _, _, text = ask(gateway, "thinks")
    assert json.loads(text)["choices"][0]["message"]["content"] == "You said: hello"
    assert "reasoning_content" not in text


def test_a_client_that_goes_away_cancels_the_upstream(serve, upstream):
    before = upstream.seen()["cancelled"]

    async def leave(url):
        timeout = aiohttp.ClientTimeout(total=0.8)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            with pytest.raises(TimeoutError):
                await session.post(url, json={"model": "hangs", "messages": HELLO})

    with serve() as gateway:
        asyncio.run(leave(gateway.url + CHAT))
        ends = time.monotonic() + 5
        while upstream.seen()["cancelled"] == before and time.monotonic() < ends:
            time.sleep(0.05)
        assert gateway.metric('waltzrl_errors_total{api="chat",kind="cancelled"}') == 1
    assert upstream.seen()["cancelled"] == before + 1


def test_a_held_stream_says_that_it_lives(serve):
    with serve("--set", "stream=buffer") as gateway:
        process = subprocess.Popen(
            ["curl", "-sN", "--max-time", "7", gateway.url + CHAT, "-d",
             json.dumps({"model": "hangs", "messages": HELLO, "stream": True})],
            stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        said, _ = process.communicate(timeout=20)
    assert '"role":"assistant"' in said
    assert ": keepalive" in said


def test_killed_under_load_the_audit_log_verifies_and_holds_all_but_the_last_moment(
    serve, tmp_path
):
    folder = tmp_path / "audit"
    with serve("--audit", str(folder)) as gateway:
        answered = asyncio.run(_load(gateway.url + CHAT, seconds=3, at_once=8))
        time.sleep(0.3)  # the documented window, several times over
        late = asyncio.run(_load(gateway.url + CHAT, seconds=0.5, at_once=8))
        gateway.process.kill()
        gateway.process.wait()
    statuses = [status for status, _ in answered]
    assert set(statuses) == {200}
    with serve("--audit", str(folder)) as gateway:
        assert ask(gateway, "echo")[0] == 200
    verified = verify(folder, PublicKey.parse((tmp_path / "audit.key.pub").read_text()))
    assert verified.records >= len(answered)
    assert verified.records <= len(answered) + len(late) + 20


def test_told_to_stop_it_answers_what_is_under_way_and_signs_the_whole_log(serve, tmp_path):
    folder = tmp_path / "audit"
    with serve("--audit", str(folder)) as gateway:
        body = json.dumps({"model": "slow", "messages": HELLO})
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", body]
        clients = [
            subprocess.Popen([*command, gateway.url + CHAT], stdout=subprocess.PIPE, text=True)
            for _ in range(8)
        ]
        while not gateway.metric("waltzrl_active_requests"):
            time.sleep(0.01)
        gateway.process.terminate()
        answered = [client.communicate(timeout=20)[0] for client in clients].count("200")
        assert gateway.process.wait(20) == 0
    verified = verify(folder, PublicKey.parse((tmp_path / "audit.key.pub").read_text()))
    assert answered
    assert verified.records == verified.signed == answered + 2  # the log's own begin and end


def test_on_a_full_disk_nothing_is_answered_unaudited(serve, tmp_path):
    with serve("--audit", str(tmp_path / "audit"), largest_file_kb=64) as gateway:
        outcomes = asyncio.run(_load(gateway.url + CHAT, seconds=2, at_once=4))
        status, headers, text = ask(gateway, "echo")
        assert (status, "audit log cannot be written" in text) == (503, True)
        assert headers["retry-after"]
        assert gateway.get("/readyz")[0] == 503
        assert gateway.get("/healthz")[0] == 200
    assert {status for status, _ in outcomes} == {200, 503}
    assert "audit" in (tmp_path / "gateway.log").read_text()


def test_on_a_full_disk_the_operator_may_choose_to_answer_unaudited(serve, tmp_path):
    told = ("--audit", str(tmp_path / "audit"), "--set", "audit.on_failure=serve")
    with serve(*told, largest_file_kb=64) as gateway:
        outcomes = asyncio.run(_load(gateway.url + CHAT, seconds=2, at_once=4))
        assert ask(gateway, "echo")[0] == 200
        assert gateway.metric("waltzrl_audit_failing") == 1
    assert {status for status, _ in outcomes} == {200}
    assert "audit log cannot be written" in (tmp_path / "gateway.log").read_text()


async def _load(url, *, seconds, at_once, model="echo"):
    """Ask as fast as `at_once` clients can; return statuses and milliseconds."""
    ends, outcomes = time.monotonic() + seconds, []

    async def client(session):
        while time.monotonic() < ends:
            started = time.monotonic()
            async with session.post(url, json={"model": model, "messages": HELLO}) as response:
                await response.read()
                outcomes.append((response.status, (time.monotonic() - started) * 1e3))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(at_once)))
    return outcomes


async def _flood(url, *, per_second, seconds):
    """Ask so often, whether answers come or not; return statuses and milliseconds."""
    outcomes = []

    async def one(session):
        started = time.monotonic()
        async with session.post(url, json={"model": "slow", "messages": HELLO}) as response:
            await response.read()
            outcomes.append((response.status, (time.monotonic() - started) * 1e3))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as group:
        for number in range(int(per_second * seconds)):
            group.create_task(one(session))
            await asyncio.sleep(1 / per_second if number else 0)
    return outcomes


@pytest.mark.slow
def test_ten_times_more_than_it_can_take_is_refused_and_the_rest_is_answered_in_time(serve):
    limits = ("--set", "limits.max_active=8", "--set", "limits.max_waiting=8")
    wait = ("--set", "limits.max_wait_seconds=0.5")
    with serve(*limits, *wait) as gateway:
        capacity = 8 / 0.3
        outcomes = asyncio.run(_flood(gateway.url + CHAT, per_second=10 * capacity, seconds=20))
        assert ask(gateway, "echo")[0] == 200
    accepted = sorted(ms for status, ms in outcomes if status == 200)
    assert {status for status, _ in outcomes} == {200, 503}
    assert len(outcomes) > 5 * len(accepted) > 0
    # 300 ms of work and 500 ms of waiting at most; the rest is for a busy machine.
    assert accepted[int(len(accepted) * 0.99)] < 2_000
