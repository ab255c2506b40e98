"""Connections of clients that are slow, and connections by TLS, on a real socket."""

import asyncio
import json
import socket
import ssl
from contextlib import asynccontextmanager

import pytest

from support.small_gateway import CHAT, HELLO, Model, gateway, listening
from support.small_site import events, words
from support.small_tls import write_certificate
from support.timing import until
from waltzrl.errors import InputError
from waltzrl.gateway.listener import open_tls

BODY = json.dumps({"model": "echo", "messages": HELLO}).encode()
HEAD = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(BODY))
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


@asynccontextmanager
async def served(*overrides, tls=None, model=None):
    """Serve a gateway on a free port; yield its application and its address."""
    async with gateway(*overrides, model=model) as app, listening(app, tls) as address:
        yield app, address


def received(*parts, overrides=()):
    """Send `parts` on a connection that is then left alone; return all that comes until its end."""

    async def work():
        async with served(*overrides) as (_, address):
            reader, writer = await asyncio.open_connection(*address)
            try:
                for part in parts:
                    writer.write(part)
                    await writer.drain()
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

    return asyncio.run(work())


def test_a_client_of_http_1_0_gets_a_body_that_ends_with_the_connection():
    body = json.dumps({"model": "echo", "messages": HELLO, "stream": True}).encode()
    asked = b"POST %s HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % (CHAT.encode(), len(body))
    head, _, streamed = received(asked, body).partition(b"\r\n\r\n")
    assert (b"transfer-encoding" in head, b"connection: close" in head) == (False, True)
    lines = [line for line in streamed.split(b"\n") if line]
    assert lines[-1] == b"data: [DONE]"
    assert all(line.startswith((b"data: ", b": ")) for line in lines)
    whole = received(HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + BODY)
    assert json.loads(whole.partition(b"\r\n\r\n")[2])["choices"]


@pytest.mark.parametrize("name", [b"Upgrade", b"upgrade"])
def test_a_client_that_offers_another_protocol_is_served_by_this_one(name):
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAEAAEAA\r\n%s: h2c\r\n" % name

    async def work():
        async with served() as (_, address):
            reader, writer = await asyncio.open_connection(*address)
            for _ in range(2):
                writer.write(HEAD.replace(b"Host", offer + b"Host") + BODY)
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                size = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
                assert b"You said hello." in await reader.readexactly(size)
            writer.close()

    asyncio.run(work())


@pytest.mark.promise(
    "Operation",
    "A request's headers arrive in `limits.max_head_seconds`, as a whole, or the connection is "
    "closed",
)
@pytest.mark.parametrize(
    "parts", [(), (b"GET /hea",), (HEALTH, b"GET /hea")], ids=["nothing", "part", "second"]
)
def test_a_head_that_does_not_arrive_closes_the_connection(parts):
    answer = received(*parts, overrides=["limits.max_head_seconds=0.05"])
    assert answer.count(b"HTTP/1.1 200") == len(parts) // 2


@pytest.mark.promise(
    "Operation",
    "A request's headers arrive in `limits.max_head_seconds`, as a whole, or the connection is "
    "closed",
)
def test_a_head_that_trickles_is_bounded_as_a_whole():
    async def work():
        async with served("limits.max_head_seconds=0.1") as (_, address):
            reader, writer = await asyncio.open_connection(*address)
            closed = asyncio.ensure_future(reader.read())
            writer.write(b"GET /healthz HTTP/1.1\r\nA: ")
            while not closed.done():
                writer.write(b"x")
                await asyncio.wait([closed], timeout=0.01)
            writer.close()
            await asyncio.gather(closed, return_exceptions=True)

    assert asyncio.run(work()) is None


@pytest.mark.promise(
    "Operation", "A request's body arrives in `limits.max_body_seconds`, or the answer is 408"
)
def test_a_body_that_does_not_arrive_is_answered_with_408():
    answer = received(
        HEAD + BODY[:9],
        overrides=["limits.max_body_seconds=0.3", "limits.max_head_seconds=0.2"],
    )
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"did not arrive within 0.3 s" in answer


@pytest.mark.promise(
    "Operation", "A request's body arrives in `limits.max_body_seconds`, or the answer is 408"
)
def test_a_body_that_nobody_waits_for_keeps_no_connection():
    request = b"POST /healthz HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1"
    answer = received(
        request, overrides=["limits.max_body_seconds=0.05", "limits.max_head_seconds=0.05"]
    )
    assert answer.startswith(b"HTTP/1.1 405")


def test_a_connection_between_requests_is_closed_after_its_time():
    answer = received(HEALTH, overrides=["limits.max_idle_seconds=0.05"])
    assert answer.startswith(b"HTTP/1.1 200")


class Long(Model):
    """A model server whose streams are longer than what a connection holds."""

    def answer(self, body, path):
        return events(*[words("hello " * 1000)] * 2000, words("", "stop"), "[DONE]")


@pytest.mark.promise(
    "Operation",
    "A client that does not read its response for `limits.max_send_seconds` is dropped, and the "
    "upstream is cancelled",
)
def test_a_client_that_does_not_read_its_stream_is_dropped():
    body = json.dumps({"model": "echo", "messages": HELLO, "stream": True}).encode()
    head = HEAD.replace(b"%d" % len(BODY), b"%d" % len(body))

    async def work():
        overrides = ["limits.max_send_seconds=0.1", "enabled=false"]
        async with served(*overrides, model=Long()) as (app, address):
            client = socket.create_connection(address)
            client.sendall(head + body)
            active = lambda: app.access.admission.active  # noqa: E731
            await until(lambda: active() == 1)
            await until(lambda: active() == 0)
            client.setblocking(False)
            size = 0
            try:
                while part := await asyncio.get_running_loop().sock_recv(client, 1 << 20):
                    size += len(part)
            except ConnectionResetError:
                pass
            client.close()
            return size

    assert asyncio.run(work()) < 12_000_000


@pytest.mark.promise(
    "Operation",
    "HTTPS with certificate, key and client certificates; files that are missing or do not fit "
    "are named",
)
def test_tls_serves_the_certificate_and_refuses_plain_text(tmp_path):
    cert, key = write_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=cert)

    async def ask(address, **how):
        reader, writer = await asyncio.open_connection(*address, **how)
        writer.write(HEALTH)
        try:
            return await reader.readuntil(b"}")
        finally:
            writer.close()

    async def work():
        async with served(tls=open_tls(cert, key)) as (_, address):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await ask(address)
            return await ask(address, ssl=trusted, server_hostname="localhost")

    assert b'{"status":"alive"}' in asyncio.run(work())


@pytest.mark.promise(
    "Operation",
    "HTTPS with certificate, key and client certificates; files that are missing or do not fit "
    "are named",
)
def test_clients_without_the_certificate_that_is_asked_for_are_refused(tmp_path):
    cert, key = write_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=cert)

    async def ask(address):
        reader, writer = await asyncio.open_connection(
            *address, ssl=trusted, server_hostname="localhost"
        )
        writer.write(HEALTH)
        try:
            return await reader.readuntil(b"}")
        finally:
            writer.close()

    async def work():
        async with served(tls=open_tls(cert, key, cert)) as (_, address):
            with pytest.raises((asyncio.IncompleteReadError, OSError)):
                await ask(address)
            trusted.load_cert_chain(cert, key)
            return await ask(address)

    assert b'{"status":"alive"}' in asyncio.run(work())


def test_a_connection_that_never_begins_tls_is_closed(tmp_path):
    tls = open_tls(*write_certificate(tmp_path))

    async def work():
        async with served("limits.max_head_seconds=0.05", tls=tls) as (_, address):
            reader, writer = await asyncio.open_connection(*address)
            try:
                return await reader.read()
            finally:
                writer.close()

    assert asyncio.run(work()) == b""


@pytest.mark.promise(
    "Operation",
    "HTTPS with certificate, key and client certificates; files that are missing or do not fit "
    "are named",
)
def test_tls_files_that_are_missing_or_do_not_fit_are_named(tmp_path):
    cert, key = write_certificate(tmp_path)
    _, other = write_certificate(tmp_path / "other")
    absent = tmp_path / "absent.pem"
    with pytest.raises(InputError, match=r"absent\.pem: No such file .* TLS needs this file"):
        open_tls(cert, absent)
    with pytest.raises(InputError, match=r"other/key\.pem is not the key of .*cert\.pem"):
        open_tls(cert, other)
    with pytest.raises(InputError, match=r"cannot serve with .*key\.pem"):
        open_tls(key, key)
    with pytest.raises(InputError, match=r"key\.pem: not certificates"):
        open_tls(cert, key, key)
    locked = write_certificate(tmp_path / "locked", password=b"secret")
    with pytest.raises(InputError, match="has a password"):
        open_tls(*locked)
