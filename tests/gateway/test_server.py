"""The server under the application: what a client may send before anybody has let it in."""

import asyncio

import pytest

from support.small_gateway import gateway, listening
from waltzrl.gateway.connection import LONGEST_HEAD

POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"
NEXT = b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
LINE = b"A: " + b"x" * 1000 + b"\r\n"
LINES = LONGEST_HEAD // len(LINE)


def is_answered(*parts):
    """Whether a gateway still answers on a connection on which `parts` have come."""

    async def send_all():
        async with gateway() as app, listening(app) as address:
            reader, writer = await asyncio.open_connection(*address)
            try:
                for part in (*parts, NEXT):
                    writer.write(part)
                    await writer.drain()
                return await reader.read()
            except ConnectionError:
                return b""
            finally:
                writer.close()

    return b"alive" in asyncio.run(send_all())


@pytest.mark.parametrize(
    "beginning",
    [POST, POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"],
    ids=["head", "trailers"],
)
def test_headers_without_end_are_dropped_before_and_after_the_body(beginning):
    assert is_answered(beginning, *[LINE] * (LINES - 1), b"\r\n")
    assert not is_answered(beginning, *[LINE] * (LINES + 2))


def test_a_long_body_is_no_head():
    body = b"x" * (3 * LONGEST_HEAD)
    assert is_answered(POST + b"Content-Length: %d\r\n\r\n" % len(body), body)
