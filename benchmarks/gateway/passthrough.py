"""The least a gateway can do: raw ASGI, request bytes to the upstream, its bytes back, unread.

python benchmarks/gateway/passthrough.py --upstream http://127.0.0.1:9000 --port 9001
"""

import argparse
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp
import uvicorn

Event = MutableMapping[str, Any]


class PassThrough:
    """An ASGI application."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.session: aiohttp.ClientSession | None = None

    async def __call__(
        self,
        scope: Event,
        receive: Callable[[], Awaitable[Event]],
        send: Callable[[Event], Awaitable[None]],
    ) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            event = await receive()
            body += event.get("body", b"")
            more = event.get("more_body", False)
        self.session = self.session or aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), auto_decompress=False
        )
        headers = {"content-type": "application/json"}
        url = self.upstream + scope["path"]
        async with self.session.request(scope["method"], url, data=body, headers=headers) as answer:
            kind = answer.headers["content-type"].encode()
            headers_out = [(b"content-type", kind)]
            if length := answer.headers.get("content-length"):
                headers_out.append((b"content-length", length.encode()))
            await send(
                {"type": "http.response.start", "status": answer.status, "headers": headers_out}
            )
            if length:
                await send({"type": "http.response.body", "body": await answer.read()})
                return
            async for chunk in answer.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upstream", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    uvicorn.run(
        PassThrough(given.upstream),
        host="127.0.0.1",
        port=given.port,
        loop="uvloop",
        http="httptools",
        lifespan="off",
        log_level="error",
        access_log=False,
    )


if __name__ == "__main__":
    main()
