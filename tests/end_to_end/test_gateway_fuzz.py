"""Ten thousand malformed requests, and bytes that are no HTTP, at a real gateway."""

import asyncio
import json
from random import Random

import aiohttp
import pytest

from support.gateway_processes import gateway_process
from support.malformed import malformed
from support.small_site import events, http, read_request, site, words

pytestmark = pytest.mark.xdist_group("fuzz")

AT_ONCE = 32
PATIENCE_SECONDS = 0.5
"""A server that has said nothing after so long waits for the rest of a request."""
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hello"}]}'
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
GOOD = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"
RAW = [
    GOOD,
    b"\r\n\r\n" + GOOD,
    GOOD + b"rubbish",
    GOOD.replace(b"\r\n", b"\n"),
    GOOD.replace(b"HTTP/1.1", b"HTTP/9.9"),
    GOOD.replace(b"HTTP/1.1", b"HTTP/1.1 HTTP/1.1"),
    GOOD.replace(b"POST", b"post"),
    GOOD.replace(b"POST", b"BREW"),
    GOOD.replace(b"/v1/chat/completions", b""),
    GOOD.replace(b"/v1/chat/completions", b"*"),
    GOOD.replace(b"/v1/chat/completions", b"http://a/v1/chat/completions"),
    GOOD.replace(b"/v1/chat/completions", b"/" + b"a" * 100_000),
    GOOD.replace(b"/v1/chat/completions", b"/%ff%00%ed%a0%80"),
    GOOD.replace(b"/v1/chat/completions", b"/\xff\xfe"),
    GOOD.replace(b"/v1", b"/../../v1"),
    GOOD.replace(b"Host: a", b"Host"),
    GOOD.replace(b"Host: a", b": a"),
    GOOD.replace(b"Host: a", b"Ho st: a"),
    GOOD.replace(b"Host: a", b"Host: a\0b"),
    GOOD.replace(b"Host: a", b"Host: a\r\n folded"),
    GOOD.replace(b"Host: a", b"Authorization: Bearer \xff\xfe"),
    GOOD.replace(b"Host: a", b"Authorization: Bearer"),
    GOOD.replace(b"Host: a", b"X-Waltzrl-Mode: \xff\r\nX-Waltzrl-Include: \xff"),
    GOOD.replace(b"Host: a", b"Traceparent: \xff-\xff-\xff-\xff"),
    GOOD.replace(b"Host: a", b"A: " + b"x" * 1_000_000),
    GOOD.replace(b"Host: a", b"\r\n".join(b"A%d: b" % n for n in range(20_000))),
    GOOD.replace(b"Host: a", b"Connection: upgrade\r\nUpgrade: websocket"),
    GOOD.replace(b"Host: a", b"Connection: upgrade\r\nUpgrade: h2c"),
    GOOD.replace(b"Host: a", b"Expect: 100-continue"),
    POST + b"Content-Length: -1\r\n\r\n" + BODY,
    POST + b"Content-Length: 1e9\r\n\r\n" + BODY,
    POST + b"Content-Length: " + b"9" * 5_000 + b"\r\n\r\n" + BODY,
    POST + b"Content-Length: 99999999999\r\n\r\n" + BODY,
    POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n" + BODY,
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + BODY,
    POST + b"Content-Length: 5\r\n\r\n" + BODY,
    POST + b"Content-Length: 5000\r\n\r\n" + BODY,
    POST + b"Transfer-Encoding: gzip\r\n\r\n" + BODY,
    POST + b"\r\n" + BODY,
    CHUNKED + b"zz\r\n",
    CHUNKED + b"F" * 40 + b"\r\n",
    CHUNKED + b"0\r\n\r\n",
    CHUNKED + b"%x\r\n%s\r\n0\r\nLate: header\r\n\r\n" % (len(BODY), BODY),
    b"GET /\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\n\r\n",
    b"HEAD /healthz HTTP/1.1\r\n\r\n",
    b"DELETE /healthz HTTP/1.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
    b"\0" * 1_000,
    b"\xff" * 100_000,
    b" " * 1_000,
]
"""Requests that are right, nearly right, and none."""


async def lenient(reader, writer):
    """Answer whatever an upstream is asked with a good reply, in a stream where one is wanted."""
    while raw := await read_request(reader):
        body = raw.partition(b"\r\n\r\n")[2]
        if not body:  # a probe: which models are there?
            writer.write(http({"data": []}))
        elif json.loads(body).get("stream"):
            writer.write(events(words("Hello.", "stop"), "[DONE]"))
        else:
            message = {"role": "assistant", "content": "Hello."}
            writer.write(http({"choices": [{"message": message, "finish_reason": "stop"}]}))


def against_a_gateway(log, attack):
    """Run `attack(gateway)`, and check that the gateway lives and did not stumble."""

    async def work():
        async with site(lenient) as upstream:
            with gateway_process("--upstream", upstream.url, "--workers", "2", log=log) as gateway:
                outcomes = await attack(gateway)
                assert await asyncio.to_thread(still_answers, gateway)
                return outcomes

    outcomes = asyncio.run(work())
    assert "Traceback" not in log.read_text()
    assert " ERROR " not in log.read_text()
    return outcomes


def still_answers(gateway):
    health, _, _ = gateway.get("/healthz")
    status, _, text = gateway.post("/v1/chat/completions", BODY)
    return (health, status) == (200, 200) and "Hello." in text


async def at_once(work, cases):
    """Do the work for all cases, a bounded number of them at a time."""
    waiting = iter(cases)

    async def worker():
        return [await work(case) for case in waiting]

    found = await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return [one for some in found for one in some]


def test_ten_thousand_malformed_requests_are_answered_or_refused_with_a_message(tmp_path):
    async def attack(gateway):
        connector = aiohttp.TCPConnector(limit=AT_ONCE)
        async with aiohttp.ClientSession(gateway.url, connector=connector) as session:

            async def send(case):
                path, raw = case
                async with session.post(path, data=raw) as response:
                    return raw, response.status, await response.text()

            return await at_once(send, malformed(seed=11, count=10_000))

    outcomes = against_a_gateway(tmp_path / "log", attack)
    assert len(outcomes) == 10_000
    for raw, status, text in outcomes:
        assert status == 200 or 400 <= status < 500, (raw[:500], status, text)
        assert "Traceback" not in text
        if status == 200:
            assert '"error":{' not in text, (raw[:500], text)
        else:
            assert json.loads(text)["error"]["message"]
    refused = sum(status != 200 for _, status, _ in outcomes)
    assert 5_000 < refused < 10_000


def mangled(seed, count):
    """Yield good requests with a few bytes changed, dropped or repeated, and pure noise."""
    random = Random(seed)
    for _ in range(count):
        raw = bytearray(GOOD)
        for _ in range(random.randint(1, 5)):
            start = random.randrange(len(raw))
            end = start + random.randint(0, 12)
            raw[start:end] = random.choice(
                (b"", random.randbytes(random.randint(1, 9)), raw[start:end] * 3, b"\r\n")
            )
        yield random.choice((bytes(raw), bytes(raw), random.randbytes(random.randint(1, 3_000))))


def test_bytes_that_are_no_request_are_refused_or_waited_for(tmp_path):
    async def attack(gateway):
        host, port = gateway.url.removeprefix("http://").split(":")

        async def send(raw):
            reader, writer = await asyncio.open_connection(host, int(port))
            try:
                writer.write(raw)
                return raw, await said(reader)
            finally:
                writer.close()

        return await at_once(send, [*RAW, *mangled(seed=5, count=600)])

    outcomes = against_a_gateway(tmp_path / "log", attack)
    statuses = set()
    for raw, text in outcomes:
        assert b"Traceback" not in text
        for line in text.split(b"\r\n"):
            if line.startswith(b"HTTP/1.1 "):
                status = int(line.split()[1])
                statuses.add(status)
                assert status in {100, 200} or 400 <= status < 500, (raw[:500], text)
    assert {200, 400, 404, 405, 413} <= statuses


async def said(reader):
    """Return all that comes until the server closes the connection, or waits for more."""
    found = b""
    try:
        while part := await asyncio.wait_for(reader.read(65_536), PATIENCE_SECONDS):
            found += part
    except (TimeoutError, ConnectionError):
        pass
    return found


def test_headers_without_end_do_not_fill_the_memory(tmp_path):
    async def attack(gateway):
        host, port = gateway.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nX-Long: ")
        sent = 0
        try:
            while sent < 100_000_000:
                writer.write(bytes(b"x" * 65_536))
                await writer.drain()
                sent += 65_536
        except ConnectionError:
            return sent
        finally:
            writer.close()
        return sent

    assert against_a_gateway(tmp_path / "log", attack) < 20_000_000
