"""What fails around a real gateway, and that nothing unsafe leaves because of it."""

import asyncio
import json
import socket
import subprocess
from urllib.request import urlopen

import aiohttp
import pytest

from support.gateway_processes import gateway_process, upstream_process
from support.timing import until, wait_until
from waltzrl.store.audit.note import PublicKey
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import verify

pytestmark = pytest.mark.xdist_group("faults")

HELLO = [{"role": "user", "content": "hello"}]
CHAT = "/v1/chat/completions"
with_workers = pytest.mark.parametrize("workers", ["1", "2"])


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


def test_an_upstream_that_dies_in_a_stream_ends_it_with_an_error(serve, upstream):
    body = json.dumps({"model": "breaks", "messages": HELLO, "stream": True}).encode()
    with serve("--set", "enabled=false") as gateway, urlopen(gateway.url + CHAT, body) as stream:
        text = stream.readline().decode()  # its status is known
        wait_until(lambda: upstream.seen()["held"] == 1)
        upstream.get("/release")
        text += stream.read().decode()
    assert stream.status == 200
    last = [line for line in text.splitlines() if line.startswith("data: {")][-1]
    assert "upstream" in json.loads(last.removeprefix("data: "))["error"]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_upstream_that_dies_before_anything_is_sent_is_a_bad_gateway(serve, stream):
    with serve() as gateway:
        status, _, text = ask(gateway, "dies", stream=stream)
    assert (status, "connection to the upstream" in text) == (502, True)


def test_an_upstream_that_hangs_is_given_up(serve):
    with serve("--set", "upstream.timeout_seconds=0.5") as gateway:
        status, _, text = ask(gateway, "hangs")
        assert ask(gateway, "echo")[0] == 200
    assert (status, "sent nothing for 0.5 s" in text) == (504, True)


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
        statuses = [ask(gateway, "echo", stream=stream)[0] for stream in [False, True] * 3 + [True]]
        assert gateway.get("/healthz")[0] == 200
    assert statuses == [502] * 5 + [503] * 2


def test_words_that_nobody_reviewed_do_not_pass_beside_the_reply(serve):
    with serve() as gateway:
        _, _, text = ask(gateway, "hides")
    message = json.loads(text)["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "You said: hello", "refusal": None}


@pytest.mark.promise(
    "What reviewers see",
    "Reasoning is reviewed with the reply and shown with it: chat, Responses, Messages, whole and "
    "streamed",
)
def test_reasoning_is_reviewed_and_shown(serve):
    with serve() as gateway:
        _, headers, text = ask(gateway, "thinks")
        _, refused, instead = ask(gateway, "plots")
    message = json.loads(text)["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == (
        "They said hello.",
        "You said: hello",
    )
    assert headers["x-waltzrl-decision"] == "draft"
    assert refused["x-waltzrl-decision"] == "refused"
    assert "reasoning" not in instead


def test_a_client_that_goes_away_cancels_the_upstream(serve, upstream):
    before = upstream.seen()
    cancelled = 'waltzrl_errors_total{api="chat",kind="cancelled"}'

    async def leave(url):
        async with aiohttp.ClientSession() as session:
            waiting = asyncio.create_task(
                session.post(url, json={"model": "hangs", "messages": HELLO})
            )
            await until(lambda: len(upstream.seen()["requests"]) > len(before["requests"]))
            waiting.cancel()
            await asyncio.wait([waiting])

    with serve() as gateway:
        asyncio.run(leave(gateway.url + CHAT))
        wait_until(lambda: upstream.seen()["cancelled"] > before["cancelled"])
        assert wait_until(lambda: gateway.metric(cancelled)) == 1
    assert upstream.seen()["cancelled"] == before["cancelled"] + 1


def test_a_held_stream_says_that_it_lives(serve):
    body = json.dumps({"model": "hangs", "messages": HELLO, "stream": True})
    with serve("--set", "stream=buffer") as gateway:
        curl = ["curl", "-sN", "--max-time", "30", "-d", body, gateway.url + CHAT]
        with subprocess.Popen(curl, stdout=subprocess.PIPE, text=True) as process:
            lines = [process.stdout.readline() for _ in range(3)]
            process.terminate()
    assert '"role":"assistant"' in lines[0]
    assert lines[1:] == ["\n", ": keepalive\n"]


@pytest.mark.promise(
    "Legal duties", "AI Act 12(1): events are recorded automatically over the lifetime"
)
@pytest.mark.promise("Requirements", "compliance: personal data, audit trail, erasure")
@with_workers
def test_killed_under_load_the_audit_log_verifies_and_holds_all_but_the_last_moment(
    serve, tmp_path, workers
):
    folder = tmp_path / "audit"
    with serve("--workers", workers, "--audit", str(folder)) as gateway:
        answered = asyncio.run(_load(gateway.url + CHAT, at_once=8, enough=has(1_000)))
        wait_until(lambda: sum(1 for _ in read_entries(folder)) > len(answered))  # it is committed
        late = asyncio.run(_load(gateway.url + CHAT, at_once=8, enough=has(200)))
        gateway.process.kill()
        gateway.process.wait()
    assert set(answered) == {200}
    with serve("--workers", workers, "--audit", str(folder)) as gateway:
        assert ask(gateway, "echo")[0] == 200
    verified = verify(folder, PublicKey.parse((tmp_path / "audit.key.pub").read_text()))
    assert verified.records >= len(answered)
    assert verified.records <= len(answered) + len(late) + 20


@with_workers
def test_told_to_stop_it_answers_what_is_under_way_and_signs_the_whole_log(
    serve, tmp_path, workers
):
    folder = tmp_path / "audit"
    with serve("--workers", workers, "--audit", str(folder)) as gateway:
        body = json.dumps({"model": "slow", "messages": HELLO})
        command = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "-d", body]
        clients = [
            subprocess.Popen([*command, gateway.url + CHAT], stdout=subprocess.PIPE, text=True)
            for _ in range(8)
        ]
        wait_until(lambda: gateway.metric("waltzrl_active_requests"))
        gateway.process.terminate()
        answered = [client.communicate(timeout=60)[0] for client in clients].count("200")
        assert gateway.process.wait(60) == 0
    verified = verify(folder, PublicKey.parse((tmp_path / "audit.key.pub").read_text()))
    assert answered
    assert verified.records == verified.signed == answered + 2  # the log's own begin and end


@pytest.mark.promise("Legal duties", "AI Act 15(4): it stays safe when something fails")
@with_workers
def test_on_a_full_disk_nothing_is_answered_unaudited(serve, tmp_path, workers):
    with serve(
        "--workers", workers, "--audit", str(tmp_path / "audit"), largest_file_kb=128
    ) as gateway:
        outcomes = asyncio.run(
            _load(gateway.url + CHAT, at_once=4, enough=lambda statuses: 503 in statuses)
        )
        status, headers, text = ask(gateway, "echo")
        assert (status, "audit log cannot be written" in text) == (503, True)
        assert headers["retry-after"]
        assert gateway.get("/readyz")[0] == 503
        assert gateway.get("/healthz")[0] == 200
    assert set(outcomes) == {200, 503}
    assert "audit" in (tmp_path / "gateway.log").read_text()


@with_workers
def test_on_a_full_disk_the_operator_may_choose_to_answer_unaudited(serve, tmp_path, workers):
    told = ("--audit", str(tmp_path / "audit"), "--set", "audit.on_failure=serve")
    with serve("--workers", workers, *told, largest_file_kb=128) as gateway:
        outcomes = asyncio.run(
            _load(
                gateway.url + CHAT,
                at_once=4,
                enough=lambda _: gateway.metric("waltzrl_audit_failing") == 1,
            )
        )
        assert ask(gateway, "echo")[0] == 200
        assert gateway.metric("waltzrl_audit_failing") == 1
    assert set(outcomes) == {200}
    assert "audit log cannot be written" in (tmp_path / "gateway.log").read_text()


def has(count):
    """Return whether there are so many answers."""
    return lambda statuses: len(statuses) >= count


async def _load(url, *, at_once, enough):
    """Ask as fast as `at_once` clients can until `enough(statuses)`; return the statuses."""
    statuses = []

    async def client(session):
        while not enough(statuses):
            statuses.append(await _status(session, url, "echo"))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(client(session) for _ in range(at_once)))
    return statuses


async def _status(session, url, model):
    async with session.post(url, json={"model": model, "messages": HELLO}) as response:
        await response.read()
        return response.status


@with_workers
def test_what_is_more_than_it_can_take_is_refused_at_once_and_the_rest_is_answered(
    serve, upstream, workers
):
    """Five waves of ten times the capacity: 8 requests are served, 8 wait, 64 are refused."""
    limits = ("--set", "limits.max_active=8", "--set", "limits.max_waiting=8")

    async def wave(url):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            requests = [asyncio.create_task(_status(session, url, "held")) for _ in range(80)]
            await until(lambda: sum(request.done() for request in requests) == 64)
            refused = [request.result() for request in requests if request.done()]
            for _ in ("those that were served", "those that waited"):
                await until(lambda: upstream.seen()["held"] == 8)
                upstream.get("/release")
            return refused, await asyncio.gather(*requests)

    with serve("--workers", workers, *limits, "--set", "limits.max_wait_seconds=60") as gateway:
        for _ in range(5):
            refused, statuses = asyncio.run(wave(gateway.url + CHAT))
            assert refused == [503] * 64
            assert sorted(statuses) == [200] * 16 + [503] * 64
        assert ask(gateway, "echo")[0] == 200


def test_who_waits_too_long_for_a_place_is_refused(serve, upstream):
    limits = ("--set", "limits.max_active=1", "--set", "limits.max_wait_seconds=0.2")

    async def two(url):
        async with aiohttp.ClientSession() as session:
            requests = [asyncio.create_task(_status(session, url, "held")) for _ in range(2)]
            await until(lambda: any(request.done() for request in requests))
            upstream.get("/release")
            return await asyncio.gather(*requests)

    with serve(*limits) as gateway:
        assert sorted(asyncio.run(two(gateway.url + CHAT))) == [200, 503]


@pytest.mark.promise(
    "Logs", "`waltzrl serve --log-format json` logs its start and its end, as JSON only"
)
def test_the_gateways_own_lines_are_json_from_start_to_stop(serve, tmp_path):
    with serve("--log-format", "json") as gateway:
        host, port = gateway.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(b"nonsense\r\n\r\n")  # which uvicorn logs
            connection.recv(1000)
        assert ask(gateway, "echo")[0] == 200
        gateway.process.terminate()
        assert gateway.process.wait(60) == 0
    lines = [json.loads(line) for line in (tmp_path / "gateway.log").read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= set.intersection(*map(set, lines))
    said = [line["message"] for line in lines]
    assert (said[0], said[-1]) == ("the gateway starts", "the gateway has stopped")
    assert "the gateway shuts down" in said
    assert [line["logger"] for line in lines if "Invalid HTTP" in line["message"]] == [
        "uvicorn.error"
    ]
