"""The model behind the gateway: a chat-completions server."""

import asyncio
import logging
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from time import monotonic, perf_counter
from types import TracebackType
from typing import TypeAlias
from urllib.parse import urlsplit

import msgspec

from waltzrl.agents.breaker import Breaker
from waltzrl.errors import InputError, RequestError, WaltzError
from waltzrl.foundation.logs import current_request, fields
from waltzrl.gateway.chat_reader import UNREADABLE, read_completion
from waltzrl.gateway.exchange import (
    ChatBody,
    Deltas,
    Json,
    ModelCard,
    UpstreamDelta,
    UpstreamReply,
    UpstreamRequest,
    UpstreamResponse,
)
from waltzrl.gateway.health import OK, Health
from waltzrl.gateway.http_client import Connection, HttpClient
from waltzrl.gateway.limits import Limits, check_reply_size
from waltzrl.gateway.stream_reader import StreamReader
from waltzrl.gateway.upstream_errors import (
    BreakerOpenError,
    UpstreamError,
    connection_error,
    reported_error,
    status_error,
)
from waltzrl.policies.refused_fields import RefusedField, send_without_refused, without_fields
from waltzrl.policies.server_faults import ReportedError
from waltzrl.policies.server_json import mend_json, read_count, read_json
from waltzrl.policies.sse import EventDecoder, ServerSentEvent
from waltzrl.records import Reply

log = logging.getLogger(__name__)


EVENT = re.compile(rb"(\xef\xbb\xbf)?\s*(data|event|id|retry)?:")
"""The beginning of a stream of events."""
IDLE_SECONDS = 10.0
"""An upstream without traffic for this long is probed."""
RETRY_SECONDS = 1.0
"""The time between the probes of an upstream whose last attempt failed."""
PROBE_SECONDS = 2.0
"""The time limit of a probe."""
FAILURES = 3
"""The failed attempts in a row, requests or probes, after which an upstream is down."""
NO_CHAT = "the server has neither /models nor /chat/completions below the URL"
MOST_NAMES, LONGEST_NAME = 100, 200
"""The most names of models that are remembered of an upstream, and their most characters."""
CODINGS = ("gzip", "x-gzip", "deflate", "br", "zstd", "compress")
"""The codings of a body that the gateway does not read."""
LINGER_SECONDS = 0.25
"""The time in which a server may end its response after the last event of a stream."""
COMPRESSED = "the upstream compressed its answer, which the gateway asks it not to"
ENDED_EARLY = "stream ended early"
NO_ROUTE = (404, 405, 501)
"""The statuses of a server that has no such path, or not with this method."""
REDIRECTED = range(300, 400)
"""The statuses of a server that sends requests to another URL, which may not get the key."""
NO_ANSWER = {*NO_ROUTE, *REDIRECTED}
"""The statuses that show nothing of a server at this URL."""
MOVED = "the server redirects requests to another URL; use that one"
OPEN_SECONDS = 10.0
"""No request is sent for this long after the upstream could not be reached several times."""


UpstreamListener: TypeAlias = Callable[[str, str], None]
"""A function that is called with the name of an upstream and the status of its answer, or why there
was none.
"""


def ignore_response(upstream: str, status: str) -> None:
    """Do nothing: the listener where nobody counts."""


class Contact:
    """What the last attempts to reach a server have shown."""

    def __init__(self, name: str = "upstream", *, clock: Callable[[], float] = monotonic) -> None:
        """Start without a contact with the server `name`, which counts as down."""
        self._name = name
        self._clock = clock
        self._failures = 0
        self._detail = "not reached yet"
        self._reached = False
        self._last = float("-inf")

    def succeeded(self) -> None:
        """Note that the server has answered."""
        if not self._reached or self._failures >= FAILURES:
            log.info("the upstream answers", extra=fields(upstream=self._name))
        self._reached, self._failures, self._last = True, 0, self._clock()

    def failed(self, detail: str) -> None:
        """Note an attempt without an answer, or one that the server failed to serve."""
        self._failures += 1
        self._detail, self._last = detail, self._clock()
        if self._failures == FAILURES:
            log.warning("the upstream is down", extra=fields(upstream=self._name, cause=detail))

    def busy(self) -> None:
        """Note that the server answers no probe while it works on a request: many do one thing."""
        self._last = self._clock()

    @property
    def needs_probe(self) -> bool:
        """Whether traffic has shown nothing good for so long that a probe is due."""
        wait = RETRY_SECONDS if self._failures or not self._reached else IDLE_SECONDS
        return self._clock() - self._last >= wait

    @property
    def health(self) -> Health:
        if self._reached and self._failures < FAILURES:
            return OK
        return Health("down", self._detail)


class HttpUpstream:
    """`POST {url}/chat/completions` and `GET {url}/models`, over a pool of connections."""

    def __init__(
        self,
        url: str,
        limits: Limits,
        *,
        api_key: str | None,
        timeout_seconds: float,
        name: str = "upstream",
        on_response: UpstreamListener = ignore_response,
    ) -> None:
        """Set up; the first request opens the first connection.

        Args:
            url: up to and without `/chat/completions`, such as `http://localhost:8000/v1`.
            limits: `max_reply_bytes` counts here.
            api_key: sent as a bearer token instead of the client's.
            timeout_seconds: longest wait for the next bytes of a reply.
            name: in logs and metrics.
            on_response: called with the outcome of each request.

        Raises:
            InputError: the URL is invalid, or the key has characters that a header cannot carry.
        """
        self.breaker = Breaker(name, open_seconds=OPEN_SECONDS)
        self.names: Collection[str] = frozenset()
        """The names of its models, from its last answer to `/models`."""
        self._refused: dict[str, tuple[RefusedField, ...]] = {}
        """The fields that its models refuse, by name."""
        self._on_response = on_response
        self._open_requests = 0
        """The number of requests whose answers have not come to their end."""
        self._contact = Contact(name)
        self._client = HttpClient(url, silence_seconds=timeout_seconds)
        self._no_chat = f"{NO_CHAT}; {_advise_on_url(url)}"
        """The text that is told where the URL leads to no such server."""
        self._limits = limits
        self._api_key = api_key and api_key.strip()
        if self._api_key and not (self._api_key.isascii() and self._api_key.isprintable()):
            raise InputError(
                "the upstream's API key has characters that an HTTP header cannot carry; check it"
            )

    async def complete(
        self, body: ChatBody, bearer: str | None, received: list[bytes] | None = None
    ) -> UpstreamReply:
        started = perf_counter()
        with await self._send_chat(body, bearer) as response:
            answer = await self._read_body(response, received=received)
            milliseconds = (perf_counter() - started) * 1e3
            if EVENT.match(answer):
                return _read_events(answer, milliseconds)
            return read_completion(answer, milliseconds)

    async def stream(self, body: ChatBody, bearer: str | None) -> Deltas:
        # Costs and budgets need the counts, whether or not the client wants them.
        streamed: dict[str, Json] = {
            **body,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        decoder, reader = EventDecoder(), StreamReader()
        started = perf_counter()
        with await self._send_chat(streamed, bearer) as response:
            part = await response.read_part()
            # A server that cannot stream ignores `stream` and returns an ordinary completion.
            if _is_whole(response, part):
                yield read_completion(await self._read_body(response, part), 0.0).delta
                return
            size, is_open, fragments = 0, True, 0
            while is_open:
                is_open = bool(part)
                size += len(part)
                check_reply_size(size, self._limits)
                # Some servers leave out the empty line at the end of the last event.
                deltas, failure = _read_deltas(decoder.feed(part or b"\n\n"), reader)
                # Calls are told as they grow: a stream that is left early is charged for them.
                if reader.fragments > fragments:
                    fragments = reader.fragments
                    deltas.insert(0, UpstreamDelta(begun=reader.read_calls))
                for delta in _merge_arrived(deltas):  # also what precedes a failure
                    yield delta
                # An incomplete last event is no failure of its own, unless it reports one.
                if failure is not None and (is_open or isinstance(failure, ReportedError)):
                    raise failure
                if is_open:
                    part = await _read_next_part(response, reader)
        if not reader.ended:
            _log_failure(started, ENDED_EARLY)
            raise _cut_stream_error()
        yield UpstreamDelta(details=reader.details)

    async def forward(self, request: UpstreamRequest) -> UpstreamResponse:
        with await self._send(request) as response:
            return UpstreamResponse(
                status=response.status,
                content_type=response.headers.get("content-type", "application/octet-stream"),
                body=await self._read_body(response),
            )

    async def models(self, bearer: str | None) -> list[ModelCard]:
        response = await self.forward(UpstreamRequest(method="GET", path="/models", bearer=bearer))
        try:
            return self._read_models(response.body)
        except UNREADABLE as error:
            raise RequestError(
                502, "upstream", "the upstream's list of models is invalid"
            ) from error

    def health(self) -> Health:
        if self.breaker.state == "open":
            return Health("down", "could not be reached several times")
        return self._contact.health

    async def watch(self) -> None:
        """Probe while there is no traffic, until cancelled."""
        while True:
            if self._contact.needs_probe:
                await self._probe()
            await asyncio.sleep(RETRY_SECONDS)

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    async def _probe(self) -> None:
        """Ask for the models, apart from the breaker: a probe may close it, and never opens it."""
        try:
            async with asyncio.timeout(PROBE_SECONDS):
                status, body = await self._ask("GET", "/models")
                chats = self._lists_models(status, body) or await self._has_chat()
        except OSError as error:  # TimeoutError too
            if isinstance(error, TimeoutError) and self._open_requests:
                self._contact.busy()
            else:
                self._contact.failed(_name_failure(error))
        except RequestError as error:  # it broke off, or sent too much
            self._contact.failed(error.kind)
        else:
            self.breaker.close()
            if not chats:
                self._contact.failed(MOVED if status in REDIRECTED else self._no_chat)
            elif status in NO_ANSWER:  # it has no list of models, and chats
                self._contact.succeeded()
            else:
                self._note(status)

    async def _ask(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Send a probe's request; return the status and the body of the answer."""
        headers = self._headers("application/json", None)
        response = await self._client.request(method, path, headers, body)
        with _Answer(response, self._api_key, lambda: None):
            return response.status, await self._read_body(response)

    def _lists_models(self, status: int, body: bytes) -> bool:
        """Return whether an answer to `/models` shows that the URL leads to a model's server.

        A server that has no such list, or answers 200 to whatever is asked, does not show it. One
        that asks for a key, or fails, has that path.
        """
        if not 200 <= status < 300:
            return status not in NO_ANSWER
        with suppress(*UNREADABLE):
            self._read_models(body)
            return True
        return False

    async def _has_chat(self) -> bool:
        """Return whether the server has `/chat/completions`; a request without messages asks."""
        status, body = await self._ask("POST", "/chat/completions", b"{}")
        if 200 <= status < 300:
            return b'"choices"' in body
        if status in REDIRECTED:
            return False
        return status not in NO_ROUTE or b"model" in body  # 404 may be said of a model, too

    def _read_models(self, body: bytes) -> list[ModelCard]:
        """Return the models of an answer to `/models`, and remember their names."""
        models = _read_models(body)
        self.names = frozenset([model.id for model in models[:MOST_NAMES]])
        return models

    def _note(self, status: int) -> None:
        """Note an answer; 404 alone does not show whether the URL or the request is wrong."""
        if status in NO_ANSWER:
            return
        if status >= 500:
            self._contact.failed(f"answered {status}")
        else:
            self._contact.succeeded()

    def _headers(self, content_type: str, bearer: str | None) -> str:
        """Return the lines of a request's headers, with the gateway's key or else the client's."""
        headers = {"Content-Type": content_type, "Accept-Encoding": "identity"}
        headers |= current_request.get().headers
        if key := self._api_key or bearer:
            headers["Authorization"] = f"Bearer {key}"
        return "".join([f"{name}: {value}\r\n" for name, value in headers.items()])

    async def _send_chat(self, body: ChatBody, bearer: str | None) -> "_Answer":
        """Send a chat as `_send` does, again without a field that the upstream refuses, or renamed.

        What a model always refuses is remembered once a request without it has succeeded.
        """
        model = str(body.get("model", ""))
        known = self._refused.get(model, ())
        chat = without_fields(body, known) if known else body
        try:
            return await self._send_body(bearer, chat)
        except UpstreamError as error:
            send = partial(self._send_body, bearer)
            answer, lasting = await send_without_refused(chat, error, send, _read_refusal)
        # Clients choose the names of models, so what is remembered by them has bounds.
        if lasting and len(model) <= LONGEST_NAME:
            self._refused[model] = (*known, lasting)
            if len(self._refused) > MOST_NAMES:
                del self._refused[next(iter(self._refused))]
        return answer

    async def _send_body(self, bearer: str | None, chat: Mapping[str, object]) -> "_Answer":
        body = msgspec.json.encode(chat)
        return await self._send(UpstreamRequest(path="/chat/completions", body=body, bearer=bearer))

    async def _send(self, request: UpstreamRequest) -> "_Answer":
        """Send a request, and return the response once it is known to be a success.

        Raises:
            UpstreamError: it is not, or the upstream is unreachable or timed out.
        """
        headers = self._headers(request.content_type, request.bearer)
        started = perf_counter()
        with self.breaker.attempt() as attempt:
            if attempt is None:
                self._on_response(self.breaker.name, "breaker")
                raise BreakerOpenError(OPEN_SECONDS)
            try:
                response = await self._begin_request(request, headers)
            except OSError as error:
                attempt.succeeded = False
                self._contact.failed(_name_failure(error))
                self._on_response(self.breaker.name, _name_failure(error).replace(" ", "_"))
                _log_failure(started, _name_failure(error))
                raise connection_error(error) from error
            # The breaker counts only whether the upstream can be reached, not how it answers.
            attempt.succeeded = True
            self._note(response.status)
            self._on_response(self.breaker.name, str(response.status))
        answer = _Answer(response, self._api_key, self._end_request)
        coding = response.headers.get("content-encoding", "").strip().lower()
        if not 200 <= response.status < 300:
            _log_failure(started, "status", response.status)
            with answer:
                body = b"" if coding in CODINGS else await self._read_body(response)
                raise status_error(response, body, self._api_key)
        if coding in CODINGS:
            _log_failure(started, "a compressed answer")
            with answer:
                raise UpstreamError(502, "upstream", f"{COMPRESSED}; got {coding}")
        return answer

    async def _begin_request(self, request: UpstreamRequest, headers: str) -> Connection:
        self._open_requests += 1
        try:
            return await self._client.request(
                request.method,
                request.path,
                headers,
                request.body,
                repeatable=request.repeatable,
            )
        except BaseException:  # a cancellation too
            self._open_requests -= 1
            raise

    def _end_request(self) -> None:
        self._open_requests -= 1

    async def _read_body(
        self, response: Connection, beginning: bytes = b"", received: list[bytes] | None = None
    ) -> bytes:
        """Read the whole body, or what follows its beginning, up to the size limit.

        Args:
            response: whose body it is.
            beginning: of the body, if it has been read.
            received: holds the parts of the body until it is whole.
        """
        parts = [] if received is None else received
        parts[:] = [beginning] if beginning else []  # nothing of an attempt that failed before
        size = len(beginning)
        check_reply_size(size, self._limits)
        while part := await response.read_part():
            size += len(part)
            check_reply_size(size, self._limits)
            parts.append(part)
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        return body


def _advise_on_url(url: str) -> str:
    path = urlsplit(url).path.rstrip("/")
    if path.endswith("/chat/completions"):
        return "end the URL before /chat/completions"
    if path.endswith("/v1"):
        return "check the path of the URL"
    return "the URL probably has to end in /v1"


def _is_whole(response: Connection, beginning: bytes) -> bool:
    """Return whether a response is JSON and no stream of events, whatever it calls itself."""
    if beginning.lstrip().startswith((b"{", b"[")):
        return True
    is_json = response.headers.get("content-type", "").startswith("application/json")
    return is_json and not EVENT.match(beginning)


async def _read_next_part(response: Connection, reader: StreamReader) -> bytes:
    """Return the next part of a stream; a connection that breaks after the reply ends it.

    Some servers keep theirs open after their last event. Most end the response with it or at once,
    so that the connection can be used again.
    """
    try:
        async with asyncio.timeout(LINGER_SECONDS if reader.done else None):
            part = await response.read_part()
            while part and reader.done:
                part = await response.read_part()
            return part
    except OSError:  # TimeoutError too
        if reader.ended or reader.done:
            return b""
        raise


def _read_deltas(
    events: Sequence[ServerSentEvent], reader: StreamReader
) -> tuple[list[UpstreamDelta], Exception | None]:
    """Return the deltas of events that arrived together, and the failure that ended them."""
    deltas: list[UpstreamDelta] = []
    try:
        for event in events:
            for delta in reader.read(event):
                deltas.append(delta)  # noqa: PERF402 (keeps those before a failure)
    except (RequestError, ReportedError) as failure:
        return deltas, failure
    return deltas, None


def _merge_arrived(deltas: Sequence[UpstreamDelta]) -> Iterator[UpstreamDelta]:
    """Yield the deltas that arrived together as one, and a second for what follows their counts.

    Those are of what precedes them.
    """
    end = max((index for index, delta in enumerate(deltas, 1) if delta.usage), default=0)
    for part in (deltas[:end], deltas[end:]):
        if part:
            yield _merge_deltas(part)


def _merge_deltas(deltas: Sequence[UpstreamDelta]) -> UpstreamDelta:
    """Merge the deltas that arrived together, so that the window checks their text only once."""
    if len(deltas) == 1:
        return deltas[0]
    return UpstreamDelta(
        reasoning="".join([delta.reasoning for delta in deltas]),
        text="".join([delta.text for delta in deltas]),
        refused=any(delta.refused for delta in deltas),
        calls=next((delta.calls for delta in reversed(deltas) if delta.calls), ()),
        begun=next((delta.begun for delta in reversed(deltas) if delta.begun), None),
        finish=next((delta.finish for delta in reversed(deltas) if delta.finish), None),
        usage=next((delta.usage for delta in reversed(deltas) if delta.usage), None),
    )


class _Answer:
    """A response that is being read: returns its connection, and converts errors.

    They are those of the connection, and those that the upstream reports with status 200.
    """

    def __init__(
        self, response: Connection, api_key: str | None, on_end: Callable[[], None]
    ) -> None:
        self._response, self._on_end = response, on_end
        self._api_key = api_key
        self._started = perf_counter()

    def __enter__(self) -> Connection:
        return self._response

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._response.close()
        self._on_end()
        if isinstance(error, OSError):
            _log_failure(self._started, _name_failure(error))
            raise connection_error(error) from error
        if isinstance(error, ReportedError):
            _log_failure(self._started, "an error with status 200", error.fault.status)
            raise reported_error(error.fault, self._response, self._api_key) from error


class _Model(msgspec.Struct):
    id: str
    created: object = 0
    owned_by: object = ""
    max_model_len: object = None
    context_length: object = None
    context_window: object = None
    max_output_tokens: object = None

    def card(self) -> ModelCard:
        """Return what clients read of it."""
        created = self.created if type(self.created) is int else read_count(self.created)
        return ModelCard(
            id=self.id,
            created=created or 0,
            owned_by=str(self.owned_by or "upstream"),
            max_model_len=_read_size(self.max_model_len),
            context_length=_read_size(self.context_length),
            context_window=_read_size(self.context_window),
            max_output_tokens=_read_size(self.max_output_tokens),
        )


def _read_size(value: object) -> int | msgspec.UnsetType:
    return value if type(value) is int else msgspec.UNSET


class _Models(msgspec.Struct):
    data: list[_Model]


def _read_models(body: bytes) -> list[ModelCard]:
    """Read an answer to `/models`, also if it is the list itself, or has null for an empty one.

    An entry without a name is left out, unless none has one.
    """
    try:
        models = msgspec.json.decode(body, type=_Models).data
    except UNREADABLE:
        listed = read_json(body)
        if isinstance(listed, dict) and "data" in listed:
            listed = listed["data"] or []
        entries = msgspec.convert(mend_json(listed), list[dict[str, object]])
        named = [entry for entry in entries if isinstance(entry.get("id"), str)]
        models = msgspec.convert(named or entries, list[_Model])
    return [model.card() for model in models]


def _read_refusal(error: WaltzError) -> str:
    """Return the upstream's words if it refuses a request for what is in it."""
    return error.refusal if isinstance(error, UpstreamError) else ""


def _read_events(answer: bytes, milliseconds: float) -> UpstreamReply:
    """Read a whole stream, which some servers send although none was asked for.

    Raises:
        RequestError: 502, it is not the stream of a chat completion, or ended early.
        ReportedError: it reports a failure.
    """
    reader = StreamReader()
    deltas, failure = _read_deltas(EventDecoder().feed(answer + b"\n\n"), reader)
    if failure is not None:
        raise failure
    if not reader.ended:
        raise _cut_stream_error()
    whole = _merge_deltas(deltas)
    finish = whole.finish or "stop"
    reply = Reply(
        text=whole.text,
        reasoning=whole.reasoning,
        calls=whole.calls,
        finish="length" if finish == "length" else "stop",
        usage=whole.usage,
        milliseconds=milliseconds,
    )
    return UpstreamReply(reply=reply, finish=finish, details=reader.details, refused=whole.refused)


def _cut_stream_error() -> UpstreamError:
    """Return the error for a stream that ended early, as if its connection had broken."""
    return UpstreamError(502, "upstream", f"the upstream's {ENDED_EARLY}", is_down=True)


def _log_failure(started: float, cause: str, status: int | None = None) -> None:
    milliseconds = (perf_counter() - started) * 1e3
    extra = fields(cause=cause, status=status, milliseconds=milliseconds)
    log.warning("a request to the upstream failed", extra=extra)


def _name_failure(error: OSError) -> str:
    return "timed out" if isinstance(error, TimeoutError) else "unreachable"
