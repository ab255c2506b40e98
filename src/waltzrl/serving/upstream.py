"""The model behind the gateway: a server that speaks chat completions, or a policy of ours."""

import re
from collections.abc import AsyncGenerator, Mapping, Sequence
from time import perf_counter
from types import TracebackType

import msgspec

from waltzrl.agents.breaker import Breaker
from waltzrl.errors import InputError, PolicyError, RequestError
from waltzrl.policies import Policy, Sampling
from waltzrl.policies.sse import EventDecoder
from waltzrl.serving.access import Limits, check_reply_size
from waltzrl.serving.chat_reader import UNREADABLE, StreamReader, read_completion, server_message
from waltzrl.serving.exchange import Json, UpstreamDelta, UpstreamReply
from waltzrl.serving.http_client import HttpClient, Response
from waltzrl.serving.wire.fields import turns_of


class PolicyUpstream:
    """A policy of this process in the upstream's place."""

    def __init__(self, name: str, policy: Policy, max_new_tokens: int) -> None:
        """Serve `policy` as the model `name`; a request may ask for `max_new_tokens` at most."""
        self.name = name
        self.policy = policy
        self.max_new_tokens = max_new_tokens

    async def complete(self, body: Mapping[str, Json], bearer: str | None) -> UpstreamReply:
        if body.get("model") != self.name:
            raise RequestError(
                404, "not_found", f"there is no model {body.get('model')!r}; say {self.name!r}"
            )
        try:
            reply = await self.policy.reply(turns_of(body["messages"]), self._sampling(body))
        except PolicyError as error:
            raise RequestError(400, "invalid_request", str(error)) from error
        return UpstreamReply(reply=reply, finish=reply.finish)

    async def stream(
        self, body: Mapping[str, Json], bearer: str | None
    ) -> AsyncGenerator[UpstreamDelta, None]:
        said = await self.complete(body, bearer)
        yield UpstreamDelta(
            text=said.reply.text,
            finish=said.finish,
            usage=said.reply.usage,
        )

    async def models(self, bearer: str | None) -> list[str]:
        return [self.name]

    async def aclose(self) -> None:
        """Leave the policy to its owner."""

    def _sampling(self, body: Mapping[str, Json]) -> Sampling:
        asked = body.get("max_completion_tokens") or body.get("max_tokens") or self.max_new_tokens
        warmth = body.get("temperature") or 0.0
        if not isinstance(asked, int) or not isinstance(warmth, int | float):
            raise RequestError(400, "invalid_request", "max_tokens and temperature must be numbers")
        limit = max(1, min(asked, self.max_new_tokens))
        return Sampling(max_new_tokens=limit, temperature=max(0.0, float(warmth)))


OPEN_SECONDS = 10.0
"""An upstream that could not be reached is left alone for so long."""
PASSED_ON = {400, 401, 403, 404, 408, 413, 422, 429}
"""Statuses that are the client's business; any other failure is the upstream's: 502."""
DAYS_AT_MOST = re.compile("[0-9]{1,6}")
KINDS = {
    401: "authentication",
    403: "permission",
    404: "not_found",
    408: "upstream_timeout",
    413: "too_large",
    429: "rate_limit",
}


class HttpUpstream:
    """`POST {url}/chat/completions` and `GET {url}/models`; connections are kept and shared."""

    def __init__(
        self, url: str, limits: Limits, *, api_key: str | None, timeout_seconds: float
    ) -> None:
        """Describe the server; nothing is opened before the first request.

        Args:
            url: up to and without `/chat/completions`, such as `http://localhost:8000/v1`.
            limits: say how long a reply may be.
            api_key: sent as a bearer token in place of the client's.
            timeout_seconds: longest silence: to the whole reply, or between parts of a stream.

        Raises:
            InputError: the URL is none of a server, or the key cannot be sent.
        """
        self.breaker = Breaker(open_seconds=OPEN_SECONDS)
        self._client = HttpClient(url, silence_seconds=timeout_seconds)
        self._limits = limits
        self._api_key = api_key and api_key.strip()
        if self._api_key and not (self._api_key.isascii() and self._api_key.isprintable()):
            raise InputError(
                "the key for the upstream has characters that no header can carry; give it anew"
            )

    async def complete(self, body: Mapping[str, Json], bearer: str | None) -> UpstreamReply:
        started = perf_counter()
        with await self._asked(msgspec.json.encode(body), bearer) as response:
            answer = await self._whole(response)
        return read_completion(answer, (perf_counter() - started) * 1e3)

    async def stream(
        self, body: Mapping[str, Json], bearer: str | None
    ) -> AsyncGenerator[UpstreamDelta, None]:
        asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
        events, reader = EventDecoder(), StreamReader()
        with await self._asked(msgspec.json.encode(asked), bearer) as response:
            if response.headers.get("content-type", "").startswith("application/json"):
                yield _at_once(await self._whole(response))  # it does not stream
                return
            size = 0
            while part := await response.part():
                size += len(part)
                check_reply_size(size, self._limits)
                said = [delta for one in events.feed(part) for delta in reader.read(one.data)]
                if said:
                    yield _together(said)
        if not reader.ended:
            raise RequestError(502, "upstream", "the upstream's stream ended before its end")

    async def models(self, bearer: str | None) -> list[str]:
        with await self._asked(None, bearer) as response:
            answer = await self._whole(response)
        try:
            found = msgspec.json.decode(answer, type=_Models)
        except UNREADABLE as error:
            raise RequestError(
                502, "upstream", "the upstream's list of models cannot be read"
            ) from error
        return [one.id for one in found.data]

    async def aclose(self) -> None:
        self._client.close()

    async def _asked(self, body: bytes | None, bearer: str | None) -> "_Answer":
        """Send a request and return its answer once it says 200.

        Raises:
            RequestError: it says something else, is silent for too long, or cannot be reached.
        """
        headers = "Content-Type: application/json\r\n"
        if key := self._api_key or bearer:
            headers += f"Authorization: Bearer {key}\r\n"
        method, path = ("GET", "/models") if body is None else ("POST", "/chat/completions")
        with self.breaker.attempt() as attempt:
            if attempt is None:
                raise RequestError(
                    503,
                    "upstream",
                    "the upstream could not be reached several times and is left alone for now",
                    retry_after_seconds=OPEN_SECONDS,
                )
            try:
                response = await self._client.ask(method, path, headers, body or b"")
            except OSError as error:
                attempt.succeeded = False
                raise _failed(error) from error
            attempt.succeeded = True  # what it says, and for how long, is no matter of reach
        answer = _Answer(response)
        if response.status != 200:
            with answer:
                raise _refused(response, await self._whole(response))
        return answer

    async def _whole(self, response: Response) -> bytes:
        """Read the body, but not without end."""
        parts: list[bytes] = []
        size = 0
        while part := await response.part():
            size += len(part)
            check_reply_size(size, self._limits)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


def _together(deltas: Sequence[UpstreamDelta]) -> UpstreamDelta:
    """Join what came in one piece, so that whoever hears it is woken once."""
    if len(deltas) == 1:
        return deltas[0]
    return UpstreamDelta(
        text="".join([delta.text for delta in deltas]),
        calls=tuple([call for delta in deltas for call in delta.calls]),
        finish=next((delta.finish for delta in deltas if delta.finish), None),
        usage=next((delta.usage for delta in reversed(deltas) if delta.usage), None),
    )


class _Answer:
    """An answer while it is read: afterwards its connection is given back, failures are told."""

    def __init__(self, response: Response) -> None:
        self._response = response

    def __enter__(self) -> Response:
        return self._response

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._response.close()
        if isinstance(error, OSError):
            raise _failed(error) from error


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


def _at_once(answer: bytes) -> UpstreamDelta:
    said = read_completion(answer, 0.0)
    return UpstreamDelta(
        text=said.reply.text,
        calls=said.reply.calls,
        finish=said.finish,
        usage=said.reply.usage,
    )


def _failed(error: OSError) -> RequestError:
    if isinstance(error, TimeoutError):
        return RequestError(504, "upstream_timeout", f"the upstream said nothing for {error}")
    return RequestError(502, "upstream", f"the connection to the upstream failed: {error}")


def _refused(response: Response, answer: bytes) -> RequestError:
    status = response.status if response.status in PASSED_ON else 502
    if response.status == 503:
        status = 503
    kind = KINDS.get(status, "invalid_request" if status < 500 else "upstream")
    # A server that fails while a reply is written may quote it, and nobody has reviewed that.
    said = f": {server_message(answer)}" if status in PASSED_ON else ""
    return RequestError(
        status,
        kind,
        f"the upstream answered {response.status}{said}",
        retry_after_seconds=_seconds(response.headers.get("retry-after", "")),
    )


def _seconds(text: str) -> float | None:
    """Read `Retry-After`; None when it is a date, or no time that anybody would wait."""
    return float(text) if DAYS_AT_MOST.fullmatch(text) else None
