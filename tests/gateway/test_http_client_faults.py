"""What goes wrong between the client and the upstream, on asyncio's loop and on uvloop."""

import asyncio
import socket

import pytest

from support.small_site import (
    HANG_UP,
    LOOPS,
    OK,
    RESET,
    answering,
    ask,
    exchange,
    on,
    read_request,
    site,
)
from support.timing import until
from waltzrl.gateway.http_client import MOST_BUFFERED, HttpClient

pytestmark = pytest.mark.parametrize("loop", LOOPS)


def reusable(client):
    """Return the kept connections that the client has not found closed or spoilt."""
    return [connection for connection in client._idle if connection.open]


def is_paused(response):
    """Whether the client makes the server wait."""
    return not response._transport.is_reading()


def test_a_body_that_would_end_with_the_connection_is_not_whole_when_it_was_reset(loop):
    with pytest.raises(ConnectionError):
        exchange(loop, [b"HTTP/1.1 200 OK\r\n\r\n", b"all ", RESET])


def test_a_kept_connection_on_which_the_server_hangs_up_is_replaced(loop):
    response, opened = exchange(loop, [OK], [HANG_UP], [OK], requests=2)
    assert (response[2], opened) == (b"OK", 2)


def test_a_connection_that_the_server_closed_while_it_was_kept_is_not_used(loop):
    async def work():
        async with site(answering([OK, HANG_UP], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            await ask(client)
            await server.left.wait()
            await until(lambda: not reusable(client))
            return (await ask(client))[2]

    assert on(loop, work()) == b"OK"


def test_a_request_is_sent_twice_at_most(loop):
    async def work():
        kept = [[OK]] * 3
        async with site(answering(*kept, [HANG_UP], [HANG_UP], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            await asyncio.gather(*(ask(client) for _ in kept))
            with pytest.raises(ConnectionError):
                await ask(client)
            return (await ask(client))[2]

    assert on(loop, work()) == b"OK"


def test_what_breaks_after_the_server_has_spoken_is_not_sent_again(loop):
    with pytest.raises(ConnectionError):
        exchange(loop, [OK], [b"HTTP/1.1 200", HANG_UP], [OK], requests=2)


@pytest.mark.parametrize(
    "parts",
    [
        [HANG_UP],
        [RESET],
        [b"HTTP/1.1 200 OK\r\nContent-", HANG_UP],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", HANG_UP],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", HANG_UP],
        [b"SSH-2.0-OpenSSH_9.2\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: two\r\n\r\nOK"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\nOK"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"zz\r\n"],
        [b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"],
    ],
)
def test_an_answer_that_breaks_off_or_is_not_http_is_a_connection_error(loop, parts):
    with pytest.raises(ConnectionError):
        exchange(loop, parts)


def test_a_server_that_is_not_there_is_an_os_error(loop):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client = HttpClient(f"http://127.0.0.1:{unused.getsockname()[1]}", silence_seconds=60)
        with pytest.raises(OSError, match="Connect"):
            on(loop, ask(client))


@pytest.mark.parametrize(
    "sent",
    [[], [b"HTTP/1.1 200 OK\r\n"], [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"]],
)
def test_silence_is_a_timeout(loop, sent):
    with pytest.raises(TimeoutError, match=r"0\.1 s"):
        exchange(loop, sent, silence_seconds=0.1)


def test_what_came_before_the_silence_is_not_lost(loop):
    async def work():
        sent = b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"
        async with site(answering([sent])) as server:
            client = HttpClient(server.url, silence_seconds=0.1)
            with await client.request("GET", "/", "") as response:
                half = await response.read_part()
                with pytest.raises(TimeoutError):
                    await response.read_part()
            await asyncio.wait_for(server.left.wait(), 60)  # and the connection is closed
            return half

    assert on(loop, work()) == b"half"


def test_leaving_before_the_end_closes_the_connection(loop):
    async def work():
        endless = b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhalf"
        async with site(answering([endless], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            with await client.request("GET", "/", "") as response:
                assert await response.read_part() == b"half"
            await asyncio.wait_for(server.left.wait(), 60)
            return (await ask(client))[2], server.opened

    assert on(loop, work()) == (b"OK", 2)


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
def test_cancelling_closes_the_connection_and_keeps_the_others(loop, sent):
    async def work():
        flushed = asyncio.Event()
        async with site(answering([OK], [OK], [sent, flushed], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            await asyncio.gather(ask(client), ask(client))
            waiting = asyncio.create_task(ask(client))
            await flushed.wait()
            for _ in range(5):  # turns of the loop in which the client reads it
                await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await asyncio.wait_for(server.left.wait(), 60)
            return (await ask(client))[2], server.opened

    assert on(loop, work()) == (b"OK", 2)


def test_a_server_that_sends_more_than_is_taken_has_to_wait(loop):
    size, written, sending = 50_000_000, 0, None

    async def talk(reader, writer):
        nonlocal written, sending
        await read_request(reader)
        sending = writer.transport
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % size)
        while written < size:
            writer.write(bytes(100_000))
            written += 100_000
            await writer.drain()

    async def work():
        async with site(talk) as server:
            client = HttpClient(server.url, silence_seconds=60)
            with await client.request("GET", "/", "") as response:
                await until(lambda: is_paused(response))
                await until(sending.get_write_buffer_size)  # the kernel takes no more either
                before = written
                taken = 0
                while part := await response.read_part():
                    taken += len(part)
            return before, taken

    before, taken = on(loop, work())
    assert before < size / 2  # the kernel's buffers, and ours
    assert taken == size


def test_a_large_answer_that_nobody_read_does_not_stall_the_next(loop):
    large = 3 * MOST_BUFFERED // 2  # complete before the server is made to wait
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % large + bytes(large)

    async def work():
        async with site(answering([answer], [OK])) as server:
            client = HttpClient(server.url, silence_seconds=1)
            with await client.request("GET", "/", "") as response:
                await until(lambda: is_paused(response))
            return (await ask(client))[2]

    assert on(loop, work()) == b"OK"


@pytest.mark.parametrize("extra", [b"rubbish", b"\0", OK, b"HTTP/1.1 500 No\r\n\r\n"])
@pytest.mark.parametrize("late", [False, True])
def test_what_follows_an_answer_is_not_taken_for_the_next(loop, extra, late):
    first = [OK, extra] if late else [OK + extra]
    mine = b"HTTP/1.1 202 OK\r\nContent-Length: 4\r\n\r\nmine"

    async def work():
        async with site(answering(first, [mine])) as server:
            client = HttpClient(server.url, silence_seconds=60)
            status, _, sent = await ask(client)
            await until(lambda: not reusable(client))
            return (status, sent), (await ask(client))[::2], server.opened

    assert on(loop, work()) == ((200, b"OK"), (202, b"mine"), 2)
