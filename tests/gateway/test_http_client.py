"""The client of the upstream, on asyncio's loop and on uvloop: what is sent, kept and read."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from itertools import pairwise

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given, settings
from hypothesis import strategies as st

import waltzrl
from support.small_site import HANG_UP, LOOPS, OK, answering, ask, exchange, on, read_request, site
from waltzrl.errors import InputError
from waltzrl.gateway.http_client import IDLE_SECONDS, HttpClient

pytestmark = pytest.mark.parametrize("loop", LOOPS)

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\n"
    b"HTTP/1.1 201 Created\r\nX-One: a\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"5\r\nhello\r\n1;x=y\r\n \r\n6\r\nworld!\r\n0\r\nX-One: late\r\n\r\n"
)


def test_the_request_is_what_was_asked(loop):
    seen = []

    async def talk(reader, writer):
        seen.append(await read_request(reader))
        writer.write(OK)

    async def work():
        async with site(talk) as server:
            url = server.url.replace("//", "//me:secret@")
            assert (await ask(HttpClient(url, silence_seconds=60), b"hi"))[2] == b"OK"
            return server.port

    port = on(loop, work())
    assert seen == [
        b"POST /base/path HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: waltzrl/%b\r\n"
        b"Content-Length: 2\r\nX-Mine: 1\r\n\r\nhi" % (port, waltzrl.__version__.encode())
    ]


@pytest.mark.promise("Operation", "A stream passes on together what arrived together")
def test_chunks_that_have_arrived_together_are_read_at_once(loop):
    chunks = b"5\r\nhello\r\n1\r\n \r\n6\r\nworld!\r\n0\r\n\r\n"

    async def work():
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        async with site(answering([head + chunks])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            with await client.request("GET", "/", "") as response:
                return [await response.read_part(), await response.read_part()]

    assert on(loop, work()) == [b"hello world!", b""]


def test_a_connection_is_kept(loop):
    assert exchange(loop, [OK], [OK], [OK], requests=3)[1] == 1


def test_requests_at_once_have_a_connection_each_and_all_are_kept(loop):
    async def work():
        async with site(answering(*[[OK]] * 8)) as server:
            client = HttpClient(server.url, silence_seconds=60)
            await asyncio.gather(*(ask(client) for _ in range(4)))
            await asyncio.gather(*(ask(client) for _ in range(4)))
            return server.opened

    assert on(loop, work()) == 4


@pytest.mark.parametrize(
    "last",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nOK",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nOK",
        # The chunks count (RFC 9112, 6.3).
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"2\r\nOK\r\n0\r\n\r\n",
    ],
)
def test_a_connection_that_the_server_will_not_keep_is_not_used_again(loop, last):
    response, opened = exchange(loop, [last], [OK], requests=2)
    assert (response[2], opened) == (b"OK", 2)


def test_a_body_that_ends_with_the_connection_is_whole(loop):
    response, _ = exchange(loop, [b"HTTP/1.1 200 OK\r\n\r\n", b"all ", b"of it", HANG_UP])
    assert response[2] == b"all of it"


@pytest.mark.parametrize(
    "head",
    [b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"],
)
def test_an_answer_may_have_no_body(loop, head):
    response, opened = exchange(loop, [OK], [head], [head], requests=3)
    assert (response[2], opened) == (b"", 1)


@settings(max_examples=100, deadline=None)
@given(cuts=st.sets(st.integers(1, len(CHUNKED) - 1)))
def test_the_answer_is_the_same_however_its_bytes_are_cut(loop, cuts):
    places = [0, *sorted(cuts), len(CHUNKED)]
    (status, headers, body), opened = exchange(
        loop, [CHUNKED[start:end] for start, end in pairwise(places)], [OK]
    )
    assert (status, body, opened) == (201, b"hello world!", 1)
    assert headers == {"x-one": "a", "transfer-encoding": "chunked"}


def test_a_connection_is_not_kept_for_longer_than_servers_keep_theirs(loop):
    now = 0.0

    async def work():
        nonlocal now
        async with site(answering([OK], [OK], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=60, clock=lambda: now)
            opened = []
            for wait in (0, IDLE_SECONDS - 1, IDLE_SECONDS + 1):
                now += wait
                await ask(client)
                opened.append(server.opened)
            await asyncio.wait_for(server.left.wait(), 60)
            return opened

    assert on(loop, work()) == [1, 1, 2]


def test_the_connection_of_a_request_that_must_not_be_repeated_is_not_kept(loop):
    async def work():
        async with site(answering([OK], [OK], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            await ask(client)
            with await client.request("POST", "/", "", repeatable=False) as response:
                assert await response.read_part() == b"OK"
            await asyncio.wait_for(server.left.wait(), 60)
            await ask(client)
            return server.opened

    assert on(loop, work()) == 2


def test_closing_the_client_closes_what_it_keeps(loop):
    async def work():
        async with site(answering([OK], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            await ask(client)
            client.close()
            await asyncio.wait_for(server.left.wait(), 60)
            return (await ask(client))[2]

    assert on(loop, work()) == b"OK"


def test_an_ipv6_address_stands_in_brackets(loop):
    seen = []

    async def talk(reader, writer):
        seen.append(await read_request(reader))
        writer.write(OK)

    async def work():
        async with site(talk, host="::1") as server:
            client = HttpClient(f"http://[::1]:{server.port}", silence_seconds=60)
            assert (await ask(client))[2] == b"OK"
            return server.port

    port = on(loop, work())
    assert b"\r\nHost: [::1]:%d\r\n" % port in seen[0]


@pytest.mark.parametrize(
    "url", ["localhost:8000/v1", "ftp://a.b/v1", "http://", "http://a:x/v1", "http://a:99999", ""]
)
def test_what_is_no_address_of_a_server_is_refused(loop, url):
    with pytest.raises(InputError):
        HttpClient(url, silence_seconds=60)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Make a certificate of 127.0.0.1 that only it itself vouches for, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    address = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    path.write_bytes(made.public_bytes(pem) + key.private_bytes(pem, *private))
    return path


def over_tls(loop, certificate):
    """Ask a server that has this certificate twice."""
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)

    async def work():
        async with site(answering([OK], [CHUNKED]), tls=tls) as server:
            client = HttpClient(f"https://127.0.0.1:{server.port}", silence_seconds=60)
            try:
                await ask(client)
                return (await ask(client))[2], server.opened
            finally:
                client.close()

    return on(loop, work())


def test_a_server_that_nobody_vouches_for_is_refused(loop, certificate):
    with pytest.raises(ssl.SSLCertVerificationError, match="self-signed"):
        over_tls(loop, certificate)


def test_a_trusted_server_is_asked_over_tls(loop, certificate, monkeypatch):
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert over_tls(loop, certificate) == (b"hello world!", 1)
