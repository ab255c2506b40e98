"""A load generator for machines without wrk: the same options, the same last line.

    python benchmarks/gateway/client.py URL BODY_FILE [NAME:VALUE ...] --connections 16 --seconds 3

Each connection sends its next request when the answer to the last one is complete.
"""

import argparse
import asyncio
import json
import time
from pathlib import Path
from urllib.parse import urlsplit

import httptools
import uvloop


class Connection(asyncio.Protocol):
    """Asks, waits for the whole answer, and asks again until told to stop."""

    def __init__(self, request: bytes, seconds_taken: list[float]) -> None:
        self.request = request
        self.seconds_taken = seconds_taken
        self.errors = 0
        self.stopping = False
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.ask()

    def ask(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.began = time.perf_counter()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_message_complete(self) -> None:
        self.seconds_taken.append(time.perf_counter() - self.began)
        self.errors += self.parser.get_status_code() >= 400
        if self.stopping:
            self.transport.close()
        else:
            asyncio.get_running_loop().call_soon(self.ask)

    def connection_lost(self, _error: Exception | None) -> None:
        self.errors += not self.stopping
        self.closed.set_result(None)


async def load(url: str, request: bytes, connections: int, seconds: float) -> dict[str, float]:
    """Keep `connections` busy for `seconds`; return what wrk would."""
    at = urlsplit(url)
    taken: list[float] = []
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    made = [
        (await loop.create_connection(lambda: Connection(request, taken), at.hostname, at.port))[1]
        for _ in range(connections)
    ]
    await asyncio.sleep(seconds)
    for one in made:
        one.stopping = True
    await asyncio.wait([one.closed for one in made], timeout=5)
    passed = time.perf_counter() - began
    taken.sort()
    return {
        "requests": len(taken),
        "seconds": passed,
        "p50_ms": 1e3 * taken[len(taken) // 2],
        "p99_ms": 1e3 * taken[len(taken) * 99 // 100],
        "errors": sum(one.errors for one in made),
    }


def main() -> None:
    """Run one load and print its result as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("url")
    parser.add_argument("body", type=Path)
    parser.add_argument("headers", nargs="*")
    parser.add_argument("--connections", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=3.0)
    given = parser.parse_args()
    body, at = given.body.read_bytes(), urlsplit(given.url)
    headers = [f"host:{at.netloc}", *given.headers, f"content-length:{len(body)}"]
    lines = "".join(f"{header.replace(':', ': ', 1)}\r\n" for header in headers)
    request = f"POST {at.path} HTTP/1.1\r\n{lines}\r\n".encode() + body
    print(json.dumps(uvloop.run(load(given.url, request, given.connections, given.seconds))))


if __name__ == "__main__":
    main()
