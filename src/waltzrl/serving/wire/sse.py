"""Server-sent events as bytes, for clients; `waltzrl.policies.sse` reads them.

Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

COMMENT = b": keepalive\n\n"
"""Says nothing; keeps idle timers of clients and proxies from firing."""
DONE = b"data: [DONE]\n\n"
"""The end of a stream of chat chunks."""


def event(data: bytes, name: str = "") -> bytes:
    """Spell an event whose data is one line, as JSON is."""
    if name:
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)
    return b"data: %b\n\n" % data
