"""Web pages of other origins, whose scripts a browser lets send requests if the gateway says so.

https://fetch.spec.whatwg.org/#http-cors-protocol
"""

import re
from collections.abc import Collection

from waltzrl.gateway.access import Event, Send

HEADERS = re.compile(rb"[A-Za-z0-9_-]+( *, *[A-Za-z0-9_-]+)*")


def find_origin(allowed: Collection[str], scope: Event) -> bytes:
    """Return the origin of the page that asks the API, if it is allowed; else an empty one."""
    if not scope["path"].startswith("/v1/"):
        return b""
    origin: bytes = dict(scope["headers"]).get(b"origin", b"")
    return origin if "*" in allowed or origin.decode("latin-1") in allowed else b""


def share_with(origin: bytes, send: Send) -> Send:
    """Return a `send` whose responses the scripts of an origin may read."""
    # No cookies: keys are in headers that scripts set themselves.
    shared = (
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", b"*"),
        (b"vary", b"origin"),
    )

    async def send_shared(event: Event) -> None:
        if event["type"] == "http.response.start":
            event = {**event, "headers": (*event["headers"], *shared)}
        await send(event)

    return send_shared


async def answer_preflight(scope: Event, send: Send) -> None:
    """Answer what a browser asks before it sends a request of another origin."""
    asked = dict(scope["headers"]).get(b"access-control-request-headers", b"")
    headers = [
        (b"access-control-allow-methods", b"GET, POST, OPTIONS"),
        (b"access-control-max-age", b"600"),
    ]
    if HEADERS.fullmatch(asked):
        headers.append((b"access-control-allow-headers", asked))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
