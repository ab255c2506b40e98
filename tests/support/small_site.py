"""Servers of a few lines that answer in parts, hang up and reset; and how to ask them."""

import asyncio
import json
import re
import socket
import struct
from contextlib import asynccontextmanager

import uvloop

from support.timing import settle
from waltzrl.gateway.http_client import HttpClient

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
HANG_UP = "hang up"
RESET = "reset"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nOK"


def on(loop, work):
    """Run `work` to its end on a loop of its own."""
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(work)


class Site:
    """A server that gives each connection to `talk`."""

    def __init__(self, talk):
        self.opened, self.left = 0, asyncio.Event()
        self._talk, self._connections = talk, []

    def connected(self, reader, writer):
        self.opened += 1
        self._connections.append((asyncio.create_task(self._serve(reader, writer)), writer))

    async def stop(self):
        tasks = [task for task, _ in self._connections]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for _, writer in self._connections:
            writer.close()  # a task that was cancelled before it began has not
        await settle()

    async def _serve(self, reader, writer):
        try:
            await self._talk(reader, writer)
        finally:
            self.left.set()
            writer.close()


@asynccontextmanager
async def site(talk, *, host="127.0.0.1", tls=None):
    """Serve on a free port; on leaving, nothing of it is left."""
    served = Site(talk)
    server = await asyncio.start_server(served.connected, host, 0, ssl=tls)
    served.port = server.sockets[0].getsockname()[1]
    served.url = f"http://127.0.0.1:{served.port}/base"
    try:
        yield served
    finally:
        await stop_accepting(*server.sockets)
        server.close()
        await served.stop()


async def stop_accepting(*listeners):
    """Accept no more connections, and wait for those that are being accepted.

    asyncio's own closing leaves these open (https://github.com/python/cpython/issues/109564).
    """
    for listener in listeners:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    await settle()


def answering(*answers):
    """Answer one request after the other, by whatever connection; an answer is in parts.

    A part that is an event is set when the parts before it are sent.
    """
    left = iter(answers)

    async def talk(reader, writer):
        while await read_request(reader):
            for part in next(left):
                if part == HANG_UP:
                    return
                if part == RESET:
                    linger = struct.pack("ii", 1, 0)
                    raw = writer.get_extra_info("socket")
                    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    writer.transport.abort()
                    return
                if isinstance(part, asyncio.Event):
                    part.set()
                    continue
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)

    return talk


async def read_request(reader):
    """Return a request; nothing when the client has gone."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", head)[1])
        return head + await reader.readexactly(length)
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


async def ask(client, body=b"{}"):
    with await client.request("POST", "/path", "X-Mine: 1\r\n", body) as response:
        body_read = b""
        while part := await response.read_part():
            body_read += part
        return response.status, response.headers, body_read


def exchange(loop, *answers, requests=1, silence_seconds=60.0):
    """Ask so many times; return the last answer, and how many connections were opened."""

    async def work():
        async with site(answering(*answers)) as server:
            client = HttpClient(server.url, silence_seconds=silence_seconds)
            for _ in range(requests):
                response = await ask(client)
            client.close()
            return response, server.opened

    return on(loop, work())


def http(body, status=200, kind="application/json", **headers):
    """Spell an answer."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    named = {"Content-Type": kind, "Content-Length": len(raw)} | {
        name.replace("_", "-"): value for name, value in headers.items()
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in named.items())
    return f"HTTP/1.1 {status} Said\r\n{lines}\r\n".encode("latin-1") + raw


def events(*data, whole=True):
    """Spell a stream of these events; one that is not whole lacks its last chunk."""
    chunk = b"".join(b"data: %s\n\n" % event.encode() for event in data)
    head = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
    )
    return head + b"%x\r\n%s\r\n" % (len(chunk), chunk) + (b"0\r\n\r\n" if whole else b"")


def words(text, finish=None):
    return json.dumps({"choices": [{"delta": {"content": text}, "finish_reason": finish}]})


def header(head, name):
    """Return the values of a header in the head of a request."""
    lines = (line.partition(": ") for line in head.split("\r\n"))
    return [value for key, _, value in lines if key.lower() == name]
