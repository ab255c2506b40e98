"""Several worker processes on one port: shared limits, one log, and no request lost in a change."""

import asyncio
import os
import signal
import sqlite3
import ssl
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest

from support.gateway_processes import gateway_process, upstream_process
from support.small_tls import write_certificate
from support.timing import until, wait_until
from support.tiny_models import tiny_model
from waltzrl.errors import InputError
from waltzrl.gateway.keys import add_key
from waltzrl.gateway.listener import open_listener
from waltzrl.store.audit.note import PublicKey
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import verify

pytestmark = pytest.mark.xdist_group("workers")

BODY = {"model": "echo", "messages": [{"role": "user", "content": "hello"}]}
CHAT = "/v1/chat/completions"


@pytest.fixture(scope="module")
def upstream():
    with upstream_process() as server:
        yield server


@pytest.fixture
def serve(upstream, tmp_path):
    """Return how to run a gateway of two workers by a recipe, with lines added to it."""
    recipe = tmp_path / "gateway.toml"

    def run(lines="", *arguments):
        write(lines)
        log = tmp_path / "gateway.log"
        return gateway_process(str(recipe), *arguments, "--workers", "2", log=log)

    def write(lines):
        recipe.write_text(f'{lines}\n[upstream]\nurl = "{upstream.url}/v1"\n')

    run.write = write
    run.log = lambda: (tmp_path / "gateway.log").read_text()
    return run


class Clients:
    """Clients that ask without pause, some on new connections; every failure is kept."""

    def __init__(self, url, count=8):
        self.statuses, self.failures = Counter(), []
        self._url, self._count, self._ended = url, count, False

    async def __aenter__(self):
        self._tasks = [asyncio.create_task(self._ask(n % 2)) for n in range(self._count)]
        await self.more(100)
        return self

    async def __aexit__(self, *exception):
        self._ended = True
        await asyncio.gather(*self._tasks)

    async def more(self, count):
        """Wait until so many more are answered."""
        enough = self.statuses.total() + count
        await until(lambda: self.statuses.total() >= enough or self.failures)

    async def _ask(self, keeps):
        connector = aiohttp.TCPConnector(force_close=not keeps)
        async with aiohttp.ClientSession(connector=connector) as session:
            while not self._ended:
                try:
                    async with session.post(self._url, json=BODY) as response:
                        await response.read()
                        self.statuses[response.status] += 1
                except aiohttp.ClientError as error:
                    self.failures.append(repr(error))


def bundle(gateway):
    lines = gateway.get("/metrics")[2].splitlines()
    return {line.split('bundle="')[1].split('"')[0] for line in lines if "build_info{" in line}


def verified(folder):
    return verify(folder / "audit", PublicKey.parse((folder / "audit.key.pub").read_text()))


@pytest.mark.promise(
    "Operation", "Several workers serve one port, and each tells the metrics of all"
)
def test_two_workers_serve_one_port_and_every_one_tells_the_metrics_of_all(serve):
    async def work(gateway):
        async with Clients(gateway.url + CHAT) as clients:
            await clients.more(200)
        return clients

    with serve() as gateway:
        assert len(gateway.workers()) == 2
        clients = asyncio.run(work(gateway))
        assert (set(clients.statuses), clients.failures) == ({200}, [])
        served = clients.statuses[200]
        told = {gateway.metric("waltzrl_requests_total") for _ in range(10)}
        assert told == {served}
        assert gateway.metric("waltzrl_total_time_ms_count") == served
        cpu = [cpu_seconds(worker) for worker in gateway.workers()]
    assert min(cpu) > 0.25 * max(cpu)


def cpu_seconds(pid):
    values = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(values[11]) + int(values[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.promise(
    "Operation",
    "A reload by SIGHUP loses no request; a recipe that cannot serve is refused and the earlier "
    "one serves on",
)
def test_a_reload_serves_the_new_recipe_and_loses_no_request(serve):
    async def work(gateway):
        async with Clients(gateway.url + CHAT) as clients:
            before, old = gateway.workers(), bundle(gateway)
            serve.write("threshold = 0.8")
            gateway.process.send_signal(signal.SIGHUP)
            await until(lambda: bundle(gateway) - old)
            await until(lambda: not before & gateway.workers())
            await clients.more(100)
            assert len(gateway.workers()) == 2
            assert len(bundle(gateway)) == 1
            assert gateway.metric("waltzrl_requests_total") >= clients.statuses[200]
        return clients

    with serve() as gateway:
        clients = asyncio.run(work(gateway))
    assert (set(clients.statuses), clients.failures) == ({200}, [])


@pytest.mark.promise(
    "Operation",
    "A reload by SIGHUP loses no request; a recipe that cannot serve is refused and the earlier "
    "one serves on",
)
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("threshold = 7", "threshold: got 7"),
        ('rules = ["missing.toml"]', "missing.toml"),
        ('[audit]\nfolder = "other"', "audit and privacy cannot change"),
    ],
)
def test_a_recipe_that_cannot_serve_is_refused_and_the_earlier_one_serves_on(serve, wrong, said):
    with serve() as gateway:
        workers, served = gateway.workers(), bundle(gateway)
        serve.write(wrong)
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the recipe was not reloaded" in serve.log())
        assert said in serve.log()
        assert gateway.post(CHAT, BODY)[0] == 200
        wait_until(lambda: gateway.workers() == workers)
        assert bundle(gateway) == served


@pytest.mark.promise(
    "Operation", "A killed worker is replaced, and only what it was answering is lost"
)
def test_a_killed_worker_is_replaced_and_no_other_request_notices(serve, tmp_path):
    async def work(gateway):
        for worker in gateway.workers():
            async with Clients(gateway.url + CHAT) as clients:
                pass
            assert clients.failures == []
            os.kill(worker, signal.SIGKILL)  # between requests; none is in flight
            async with Clients(gateway.url + CHAT) as clients:
                await until(lambda gone=worker: len(gateway.workers() - {gone}) == 2)
                await clients.more(50)
            assert (set(clients.statuses), clients.failures) == ({200}, [])
            seen.update(clients.statuses)

    seen = Counter()
    with serve("", "--audit", str(tmp_path / "audit")) as gateway:
        asyncio.run(work(gateway))
        total = gateway.metric("waltzrl_requests_total")
    assert serve.log().count("a worker has died; starting another") == 2
    result = verified(tmp_path)
    ids = [entry.decision.id for entry in read_entries(tmp_path / "audit") if entry.decision]
    assert result.records == result.signed == len(ids) + 2
    assert len(set(ids)) == len(ids) >= max(total, seen[200])


@pytest.mark.promise(
    "Operation", "A killed worker is replaced, and only what it was answering is lost"
)
def test_requests_in_flight_in_a_killed_worker_are_all_that_is_lost(serve, tmp_path):
    async def work(gateway):
        async with Clients(gateway.url + CHAT, count=8) as clients:
            os.kill(min(gateway.workers()), signal.SIGKILL)
            await until(lambda: clients.statuses.total() > 600)
        return clients

    with serve("", "--audit", str(tmp_path / "audit")) as gateway:
        clients = asyncio.run(work(gateway))
    assert set(clients.statuses) == {200}
    assert len(clients.failures) <= 8
    assert verified(tmp_path).records >= clients.statuses[200] + 2


@pytest.mark.promise(
    "Operation",
    "One audit log of all workers verifies, whoever is killed; no record that was accepted is "
    "lost with a worker",
)
def test_without_their_supervisor_workers_stop_and_the_log_goes_on(serve, tmp_path):
    with serve("", "--audit", str(tmp_path / "audit")) as gateway:
        assert gateway.post(CHAT, BODY)[0] == 200
        workers = gateway.workers()
        wait_until(lambda: sum(1 for _ in read_entries(tmp_path / "audit")) == 2)
        gateway.process.kill()
        gateway.process.wait()
        wait_until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    with serve("", "--audit", str(tmp_path / "audit")) as gateway:
        assert gateway.post(CHAT, BODY)[0] == 200
    events = [entry.event for entry in read_entries(tmp_path / "audit")]
    assert events == ["opened", "decision", "opened", "decision", "closed"]
    assert verified(tmp_path).signed == 5


def test_nothing_waits_for_the_recorder_of_what_was_killed(serve, tmp_path):
    database, key = tmp_path / "memory.db", tmp_path / "memory.key"
    memory = f'[memory]\nurl = "sqlite:///{database}"\nsubject_key = "{key}"'
    with serve(memory) as gateway, closing(sqlite3.connect(database)) as other:
        other.execute("BEGIN EXCLUSIVE")  # its recorders try for a minute to store what was said
        for _ in range(20):  # each worker has something to store
            assert gateway.post(CHAT, BODY)[0] == 200
        os.kill(min(gateway.workers()), signal.SIGKILL)
        wait_until(lambda: "a worker has died; starting another" in serve.log(), seconds=20)
        gateway.process.kill()
        gateway.process.wait()
        port = urlsplit(gateway.url).port
        wait_until(lambda: can_listen(port), seconds=20)


def can_listen(port):
    try:
        open_listener("127.0.0.1", port).close()
    except InputError:
        return False
    return True


@pytest.mark.promise("Operation", "Limits hold for all workers together")
def test_a_key_has_one_allowance_in_all_workers(serve, tmp_path):
    keys = tmp_path / "keys.toml"
    key = add_key(keys, {"name": "ada", "requests_per_minute": 1, "burst": 60})

    async def work(gateway):
        headers = {"Authorization": f"Bearer {key}"}
        connector = aiohttp.TCPConnector(force_close=True)
        async with aiohttp.ClientSession(headers=headers, connector=connector) as session:

            async def ask():
                async with session.post(gateway.url + CHAT, json=BODY) as response:
                    return response.status

            return Counter(await asyncio.gather(*(ask() for _ in range(120))))

    with serve("", "--keys", str(keys)) as gateway:
        assert asyncio.run(work(gateway)) == {200: 60, 429: 60}


@pytest.mark.promise("Operation", "Limits hold for all workers together")
def test_workers_share_the_places_for_requests(serve, upstream):
    """Ten times the capacity: 8 requests are served, 8 wait, 64 are refused, in two workers."""
    limits = "[limits]\nmax_active = 8\nmax_waiting = 8\nmax_wait_seconds = 60"

    async def wave(url):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:

            async def ask():
                async with session.post(url, json=BODY | {"model": "held"}) as response:
                    await response.read()
                    return response.status

            requests = [asyncio.create_task(ask()) for _ in range(80)]
            await until(lambda: sum(request.done() for request in requests) == 64)
            for _ in ("those that were served", "those that waited"):
                await until(lambda: upstream.seen()["held"] == 8)
                upstream.get("/release")
            return Counter(await asyncio.gather(*requests))

    with serve(limits) as gateway:
        for _ in range(2):
            assert asyncio.run(wave(gateway.url + CHAT)) == {200: 16, 503: 64}
        assert gateway.metric("waltzrl_active_requests") == 0


def test_a_reload_takes_a_new_certificate(serve, tmp_path):
    cert, key = write_certificate(tmp_path / "tls")

    async def certificate(gateway):
        host, port = gateway.url.removeprefix("https://").split(":")
        trusted = ssl.create_default_context(cafile=cert)
        _, writer = await asyncio.open_connection(
            host, port, ssl=trusted, server_hostname="localhost"
        )
        try:
            return writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        finally:
            writer.close()
            await writer.wait_closed()

    with serve("", "--tls-cert", str(cert), "--tls-key", str(key)) as gateway:
        first = asyncio.run(certificate(gateway))
        workers = gateway.workers()
        write_certificate(tmp_path / "tls")
        gateway.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not workers & gateway.workers())
        assert asyncio.run(certificate(gateway)) != first


def test_a_gateway_that_cannot_serve_says_why_and_ends(serve, tmp_path):
    with (
        pytest.raises(AssertionError, match=r"error: .*missing\.toml"),
        serve('rules = ["missing.toml"]'),
    ):
        pass


@pytest.fixture
def weights(tmp_path):
    """A folder of weights."""
    model, folder = tiny_model(), tmp_path / "model"
    model.model.save_pretrained(folder)
    model.tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.promise(
    "Operation",
    "A gateway stops at once and quietly while weights load, and a SIGTERM to all of its "
    "processes loses no request",
)
@pytest.mark.parametrize("send", [os.kill, os.killpg])  # Kubernetes; systemd and terminals
def test_a_gateway_stops_at_once_and_quietly_while_weights_load(weights, send):
    arguments = ["--port", "0", "--set", f"upstream.folder={weights}"]
    with subprocess.Popen(
        [sys.executable, "-m", "waltzrl", "serve", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert "the gateway starts" in process.stderr.readline()
        send(process.pid, signal.SIGTERM)
        lines = process.stderr.read().splitlines()
        assert process.wait() == 0
    events = ["the gateway shuts down active=0", "the gateway has stopped"]
    assert [line.partition(": ")[2] for line in lines] == events


@pytest.mark.promise(
    "Operation",
    "A gateway stops at once and quietly while weights load, and a SIGTERM to all of its "
    "processes loses no request",
)
def test_a_gateway_that_is_stopped_before_it_starts_says_nothing_of_training(tmp_path):
    pipe = tmp_path / "gateway.toml"
    os.mkfifo(pipe)  # whose reader waits
    with (
        subprocess.Popen(
            [sys.executable, "-m", "waltzrl", "serve", str(pipe)], stderr=subprocess.PIPE, text=True
        ) as process,
        pipe.open("w"),
    ):
        process.send_signal(signal.SIGTERM)
        line = process.stderr.read()
        assert process.wait() == 0
    assert line.partition(": ")[2] == "stopped before the gateway started\n"


@pytest.mark.promise(
    "Operation",
    "A gateway stops at once and quietly while weights load, and a SIGTERM to all of its "
    "processes loses no request",
)
def test_a_signal_to_all_processes_loses_no_request(serve, upstream):
    async def work(gateway):
        async with aiohttp.ClientSession() as session:
            held = {**BODY, "model": "held"}
            request = asyncio.create_task(session.post(gateway.url + CHAT, json=held))
            await until(lambda: gateway.metric("waltzrl_active_requests") == 1)
            for pid in (*gateway.workers(), gateway.process.pid):
                os.kill(pid, signal.SIGTERM)
            await until(lambda: "shuts down" in serve.log())
            upstream.get("/release")
            return (await request).status

    with serve() as gateway:
        assert asyncio.run(work(gateway)) == 200
        assert gateway.process.wait(60) == 0
