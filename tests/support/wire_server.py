"""A real HTTP server that answers in the format of each API, and streams as the gateway does."""

from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import (
    NO_DETAILS,
    Answer,
    ReplyDetails,
    TokenAlternative,
    TokenLogprob,
)
from waltzrl.gateway.wire import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from waltzrl.records import Collaboration, Message, Prompt, Reply, ToolCall, Usage

ASKED = Prompt(id="1", messages=(Message(role="user", content="Hello"),))
FORMATS = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": COMPLETIONS,
    "/v1/responses": RESPONSES,
    "/v1/messages": MESSAGES,
}
DETAILS = ReplyDetails(
    created=17,
    system_fingerprint="fp_1",
    service_tier="default",
    logprobs=(
        TokenLogprob(token="Hi", logprob=-0.5, bytes=[72, 105]),
        TokenLogprob(
            token=".",
            logprob=-0.25,
            top_logprobs=[TokenAlternative(token="!", logprob=-2.0)],
        ),
    ),
    usage={
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 3},
    },
)
"""Of the reply `Hi.`"""
CALL = ToolCall(id="call_1", name="weather", arguments='{"city":"Oslo"}')
OTHER_CALL = ToolCall(id="call_2", name="weather", arguments='{"city":"Bergen"}')


def answer_of(text="", *calls, finish=None, details=NO_DETAILS, reasoning=""):
    """Return an answer of 7 tokens to 11."""
    usage = Usage(input_tokens=11, output_tokens=7)
    reply = Reply(text=text, reasoning=reasoning, calls=calls, usage=usage)
    return Answer(
        reply=reply,
        finish=finish or ("tool_calls" if calls else "stop"),
        decision="draft",
        details=details,
        collaboration=Collaboration(prompt=ASKED, draft=reply),
    )


def stream_of(writer, answers, retraction=None):
    """Yield the stream of `answers`, three characters at a time, with keepalives in between."""
    yield writer.open()
    yield writer.keepalive()
    for choice, answer in enumerate(answers):
        text, reasoning = answer.reply.text, answer.reply.reasoning
        for start in range(0, len(reasoning), 3):
            yield writer.reasoning(choice, reasoning[start : start + 3])
        for start in range(0, len(text), 3):
            yield writer.text(choice, text[start : start + 3])
        yield writer.keepalive()
        if retraction is not None:
            yield writer.retract(choice, *retraction)
        yield writer.finish(choice, answer)
    yield writer.close(answers)


def broken_stream(writer, problem):
    """Yield a stream that fails after some text."""
    yield writer.open()
    yield writer.text(0, "The ri")
    yield writer.error(problem)


class Scene:
    """What the server answers next, and the requests it got."""

    def __init__(self):
        self.answers = []
        self.problem = None
        """Sent instead of the answers; in a stream, after some text."""
        self.retraction = None
        self.exchanges = []

    def body(self, wire, raw):
        """Return the status, the content type and the parts of the response."""
        try:
            exchange = wire.read(raw, "42")
            self.exchanges.append(exchange)
            if self.problem and not exchange.stream:
                raise self.problem
        except RequestError as error:
            return error.status, "application/json", [wire.error(error, "req_42")]
        if not exchange.stream:
            return 200, "application/json", [wire.write(exchange, self.answers)]
        writer = wire.writer(exchange)
        if self.problem:
            return 200, "text/event-stream", broken_stream(writer, self.problem)
        return 200, "text/event-stream", stream_of(writer, self.answers, self.retraction)


@contextmanager
def wire_server():
    """Serve all APIs; yield the URL and the scene."""
    scene = Scene()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            status, kind, pieces = scene.body(FORMATS[self.path.partition("?")[0]], raw)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)
                self.wfile.flush()

        def log_message(self, *_):
            """Stay silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", scene
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
