"""A model server that always gives the same answer, so that only the gateway costs anything.

    python benchmarks/gateway/upstream.py --port 9000 [--delay-ms 20]

`POST` of anything is a chat completion of about 1 KB, or the same text in 44 events when the
request asks for a stream; `GET /v1/models` lists the one model.
"""

import argparse
import asyncio
import json

import httptools
import uvloop

MODEL = "bench"
WORDS = (
    "A good loaf needs four things: flour, water, salt and time. Mix them until no dry flour is"
    " left, cover the bowl and let it rest for half an hour. Fold the dough over itself from each"
    " side, and do that again three times in the next two hours. When it has grown by half, shape"
    " it gently on a floured table and put it in a basket. A night in the refrigerator gives it"
    " more taste and makes it easier to score. Heat the oven with a heavy pot inside, turn the"
    " loaf into the pot, cut the top and bake it covered for twenty minutes, then open for another"
    " twenty until the crust is dark."
)
EVENTS = 44


def text_parts() -> list[str]:
    """Cut the answer into as many parts as there are events."""
    size = -(-len(WORDS) // EVENTS)
    return [WORDS[start : start + size] for start in range(0, len(WORDS), size)]


def plain() -> bytes:
    """The answer at once, as a whole HTTP response."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": WORDS},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 420, "completion_tokens": 150, "total_tokens": 570}
    head = {"id": "chatcmpl-0", "object": "chat.completion", "created": 1, "model": MODEL}
    return _response(json.dumps(head | {"choices": [choice], "usage": usage}).encode())


def events() -> list[bytes]:
    """The answer as a stream: the HTTP head, then one chunk for each event."""
    head = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 1, "model": MODEL}
    deltas = [{"role": "assistant", "content": ""}, *({"content": part} for part in text_parts())]
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": "stop"})
    said = [json.dumps(head | {"choices": [choice]}) for choice in choices]
    lines = [f"data: {event}\n\n".encode() for event in [*said, "[DONE]"]]
    chunks = [b"%x\r\n%b\r\n" % (len(line), line) for line in lines]
    first = (
        b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    return [first, *chunks, b"0\r\n\r\n"]


def _response(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


PLAIN = plain()
STREAM = events()
MODELS = _response(
    json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
)


class Fixed(asyncio.Protocol):
    """One connection."""

    delay_seconds = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self.transport = transport
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        streams = b'"stream":true' in self.body or b'"stream": true' in self.body
        listing = self.parser.get_method() == b"GET"
        self.body = b""
        parts = [MODELS] if listing else STREAM if streams else [PLAIN]
        if self.delay_seconds and not listing:
            asyncio.get_running_loop().call_later(self.delay_seconds, self.answer, parts)
        else:
            self.answer(parts)

    def answer(self, parts: list[bytes]) -> None:
        """Write the answer, one write for each event."""
        for part in parts:
            self.transport.write(part)


async def serve(port: int) -> None:
    """Answer until the process is ended."""
    server = await asyncio.get_running_loop().create_server(Fixed, "127.0.0.1", port, backlog=512)
    await server.serve_forever()


def main() -> None:
    """Serve."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0, help="before each answer")
    given = parser.parse_args()
    Fixed.delay_seconds = given.delay_ms / 1000
    uvloop.run(serve(given.port))


if __name__ == "__main__":
    main()
