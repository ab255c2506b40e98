"""A policy behind an OpenAI-compatible server: vLLM, a hosted model, or a waltzrl gateway."""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Generic, Literal, TypeVar
from urllib.parse import SplitResult, urlsplit

import msgspec

from waltzrl.errors import InputError, PolicyError, WaltzError
from waltzrl.foundation.logs import current_request
from waltzrl.policies.arguments import check_remote_arguments
from waltzrl.policies.chat_completion import (
    ChatCompletion,
    chat_message,
    read_chat_completion,
    read_streamed_completion,
    read_text_completion,
)
from waltzrl.policies.json_format import JsonFormat
from waltzrl.policies.policy import Sampling
from waltzrl.policies.refused_fields import RefusedField, send_without_refused, without_fields
from waltzrl.policies.server_faults import (
    ReportedError,
    ServerFault,
    read_fault,
    read_wait,
)
from waltzrl.policies.server_json import encode_body
from waltzrl.records import Message, Reply, Usage, estimate_usage

if TYPE_CHECKING:
    import aiohttp  # at run time when the first connection is opened: it takes 0.1 s

FIRST_RETRY_SECONDS = 0.25
LONGEST_RETRY_SECONDS = 30.0
LONGEST_MESSAGE = 500
NO_COMPLETION = "no chat completion"
TOP_LOGPROBS = 5
"""The number of candidates of each token, which hold true and false; the most that common servers
give.
"""
EXTRAS = (("response_format", "logprobs"), ("logprobs",), ("response_format",), ())
"""The fields to ask of a server beside a reply, best first."""
REJECTIONS = frozenset({"HTTP 400", "HTTP 422", "HTTP 501"})
"""The statuses with which servers answer to fields that they do not support."""

logger = logging.getLogger(__name__)

_Enough = Callable[[str], bool] | None
_Kind = Literal["chat", "text"]
READERS: Mapping[_Kind, Callable[[bytes], ChatCompletion]] = {
    "chat": read_chat_completion,
    "text": read_text_completion,
}
_Answer = TypeVar("_Answer")


class RemotePolicy:
    """Replies through `POST {base_url}/chat/completions`.

    Close it with `aclose`, or use it as an asynchronous context manager.
    """

    def __init__(  # noqa: PLR0913 - what a connection needs
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        concurrency: int = 16,
        timeout_seconds: float = 60.0,
        retries: int = 3,
    ) -> None:
        """Describe the server; the first reply opens the connections.

        Args:
            base_url: the URL without `/chat/completions`, such as `http://localhost:8000/v1`.
            model: the model's name on the server.
            api_key: sent as a bearer token.
            headers: sent with every request.
            concurrency: most concurrent requests; further calls wait.
            timeout_seconds: for one attempt, until the reply is complete.
            retries: attempts after the first, for transient failures.

        Raises:
            InputError: the URL is not one of a server, or an argument is of another type.
        """
        server_address(base_url)
        check_remote_arguments(model, api_key, concurrency, timeout_seconds, retries)
        self.model = model
        self.revision = ""
        """The server's name of the model in the last reply, and its fingerprint, if any."""
        self._base_url = base_url.rstrip("/")
        self._host = urlsplit(base_url).netloc
        self._headers = dict(headers or {})
        if api_key and api_key.strip():
            self._headers["Authorization"] = f"Bearer {api_key.strip()}"
        self._concurrency = concurrency
        self._timeout_seconds = timeout_seconds
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop of the session, whose connections work in no other."""
        self._slots = asyncio.Semaphore(concurrency)
        self._refused: tuple[RefusedField, ...] = ()
        """The fields that the server refuses."""
        self._accepted: tuple[tuple[str, ...], ...] = EXTRAS
        """The options to try; one option once the server has accepted it."""

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the next assistant turn.

        With `sampling.enough`, the reply is streamed and the connection closed as soon as the
        text is enough, which tells the server to stop; then the token counts are estimates.

        Raises:
            PolicyError: the server rejected the request, or still failed after the last retry.
        """
        started = time.perf_counter()
        completion = await self.complete(messages, sampling)
        prompt = "".join(message.full_text for message in messages)
        return self._reply(completion, prompt, sampling, started)

    async def continue_text(self, text: str, sampling: Sampling) -> Reply:
        """Continue a text through `POST {base_url}/completions`, without a chat template.

        Raises:
            PolicyError: as in `reply`, or there are arguments for a chat template.
        """
        started = time.perf_counter()
        if sampling.template:
            raise PolicyError("a text to continue has no chat template; remove its arguments")
        body = {"prompt": text, **self._sampling_fields(sampling)}
        read = partial(self._read_completion, kind="text")
        request = _Request(path="/completions", body=b"", read=read)
        completion = await self._send_asking(request, body, sampling, {"logprobs": TOP_LOGPROBS})
        return self._reply(completion, text, sampling, started)

    def _reply(
        self, completion: ChatCompletion, prompt: str, sampling: Sampling, started: float
    ) -> Reply:
        choice = completion.choices[0]
        text = choice.message.text
        return Reply(
            text=sampling.cut(text),
            finish="length" if choice.finish_reason == "length" else "stop",
            usage=self._usage(completion, prompt, text, streamed=sampling.enough is not None),
            milliseconds=(time.perf_counter() - started) * 1e3,
            label_probabilities=(
                sampling.format.probabilities(choice.tokens) if sampling.format else ()
            ),
        )

    def _usage(
        self, completion: ChatCompletion, prompt: str, text: str, *, streamed: bool
    ) -> Usage | None:
        """Return the server's counts; an estimate for a stream that was closed before they came."""
        model = completion.model or self.model
        if completion.usage and (usage := completion.usage.as_usage(model)):
            return usage
        return estimate_usage(prompt, text, model) if streamed else None

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        headers: Mapping[str, str] | None = None,
    ) -> ChatCompletion:
        """Return the server's whole answer.

        Args:
            messages: the conversation.
            sampling: how to generate; see `reply`.
            headers: added to those of the request.

        Raises:
            PolicyError: as in `reply`.
        """
        turns = [chat_message(message) for message in messages]
        body = {"messages": turns, **self._sampling_fields(sampling)}
        if sampling.template:
            body["chat_template_kwargs"] = sampling.template
        if sampling.enough is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        read = partial(self._read_completion, kind="chat", enough=sampling.enough)
        request = _Request(path="/chat/completions", body=b"", headers=headers or {}, read=read)
        logprobs = {"logprobs": True, "top_logprobs": TOP_LOGPROBS}
        return await self._send_asking(request, body, sampling, logprobs)

    def _sampling_fields(self, sampling: Sampling) -> dict[str, object]:
        """Return the model and how to sample from it, as fields of a request."""
        if sampling.tools or sampling.schema:
            raise PolicyError("a remote policy has no tools and no schemas; remove them")
        fields: dict[str, object] = {
            "model": self.model,
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
        }
        if sampling.top_p < 1:
            fields["top_p"] = sampling.top_p
        if sampling.seed is not None:
            fields["seed"] = sampling.seed
        return fields

    async def _send_asking(
        self,
        request: "_Request[ChatCompletion]",
        body: dict[str, object],
        sampling: Sampling,
        logprobs: Mapping[str, object],
    ) -> ChatCompletion:
        """Send a request for a completion, and keep what the server calls its model."""
        if sampling.format is None:
            completion = await self._send_body(request, body)
        else:
            extras: dict[str, Mapping[str, object]] = {}
            if isinstance(sampling.format, JsonFormat):
                extras["response_format"] = {"response_format": sampling.format.response_format}
            extras["logprobs"] = logprobs
            completion = await self._send_formatted(request, body, extras)
        self.revision = " ".join(filter(None, (completion.model, completion.system_fingerprint)))
        return completion

    async def _send_formatted(
        self,
        request: "_Request[ChatCompletion]",
        body: dict[str, object],
        extras: Mapping[str, Mapping[str, object]],
    ) -> ChatCompletion:
        """Ask for a format and log-probabilities, or for as much of it as the server accepts.

        What it accepts is remembered once a request has succeeded, so that a request which is
        rejected for another reason changes nothing.
        """
        asked_for = [tuple(name for name in names if name in extras) for names in self._accepted]
        options = list(dict.fromkeys(asked_for))
        for names in options:
            asked = body.copy()
            for name in names:
                asked |= extras[name]
            try:
                completion = await self._send_body(request, asked)
            except PolicyError as error:
                if error.reason in REJECTIONS and names is not options[-1]:
                    continue
                raise
            if len(self._accepted) > 1:
                # Later requests begin with what has worked, and try nothing else.
                self._accepted = (names,)
                if rejected := [name for name in extras if name not in names]:
                    logger.warning("%s rejects %s", self._host, " and ".join(rejected))
            return completion
        raise AssertionError("the last option returns or raises")

    async def _send_body(
        self, request: "_Request[ChatCompletion]", body: Mapping[str, object]
    ) -> ChatCompletion:
        """Send a body, again without a field that the server refuses, or by its newer name.

        What it always refuses is remembered once a request without it has succeeded.
        """
        chat = without_fields(body, self._refused)

        def send(chat: Mapping[str, object]) -> Awaitable[ChatCompletion]:
            return self._send(replace(request, body=encode_body(chat)))

        try:
            return await send(chat)
        except PolicyError as error:
            completion, lasting = await send_without_refused(chat, error, send, _read_refusal)
        if lasting and lasting not in self._refused:
            self._refused = (*self._refused, lasting)
        return completion

    async def post(self, path: str, body: bytes) -> bytes:
        """Send JSON to another path of the server and return its answer.

        Args:
            path: appended to the base URL, such as `/review`.
            body: the JSON.

        Raises:
            PolicyError: as in `reply`.
        """
        return await self._send(_Request(path=path, body=body, read=_read_body))

    async def get(self, path: str) -> bytes:
        """Return what another path of the server answers to a GET request.

        Raises:
            PolicyError: as in `reply`.
        """
        return await self._send(_Request(path=path, body=None, read=_read_body))

    async def aclose(self) -> None:
        """Close the connections; the next reply opens new ones, in any event loop."""
        if self._session is None or self._loop is None:
            return
        # A session has to be closed in its own event loop, which may run in another thread.
        if self._loop is not asyncio.get_running_loop() and self._loop.is_running():
            closing = asyncio.run_coroutine_threadsafe(self._session.close(), self._loop)
            await asyncio.wrap_future(closing)
        else:
            await self._session.close()

    async def __aenter__(self) -> "RemotePolicy":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.aclose()

    async def _open(self) -> "aiohttp.ClientSession":
        """Return the session; an `InputError` if it belongs to another event loop that is open."""
        loop = asyncio.get_running_loop()
        if self._session and self._loop and self._loop.is_closed():
            await self._session.close()  # its connections ended with their loop
        if self._session is None or self._session.closed:
            import aiohttp

            self._loop = loop
            timeout = aiohttp.ClientTimeout(total=self._timeout_seconds)
            self._session = aiohttp.ClientSession(
                # The slots limit the requests; waiting for a connection would count as an attempt.
                connector=aiohttp.TCPConnector(limit=0),
                timeout=timeout,
                headers=self._headers,
            )
            # The former one may be bound to an event loop that is closed.
            self._slots = asyncio.Semaphore(self._concurrency)
        elif self._loop is not loop:
            raise InputError(
                f"{self._host}: got a call in another event loop than the first, in which the "
                "connections are; make all calls in one, such as in one asyncio.run, or without "
                "await, through guard.sync"
            )
        return self._session

    async def _send(self, request: "_Request[_Answer]") -> _Answer:
        """Send the request, and again after transient failures."""
        session = await self._open()
        async with self._slots:
            attempt = 0
            while True:
                outcome = await self._attempt(session, request)
                if not isinstance(outcome, _Failure):
                    return outcome
                if not outcome.transient or attempt == self._retries:
                    raise PolicyError(
                        f"{self._host}: {outcome.message} (attempt {attempt + 1})",
                        reason=outcome.reason,
                    )
                await asyncio.sleep(_choose_retry_seconds(attempt, outcome.retry_after_seconds))
                attempt += 1

    async def _attempt(
        self, session: "aiohttp.ClientSession", request: "_Request[_Answer]"
    ) -> "_Answer | _Failure":
        import aiohttp

        url = f"{self._base_url}{request.path}"
        own = current_request.get().headers
        headers = {"Content-Type": "application/json", **own, **request.headers}
        method = "GET" if request.body is None else "POST"
        try:
            async with session.request(method, url, data=request.body, headers=headers) as response:
                return await _read_outcome(response, request)
        # This goes first: aiohttp's own timeouts are errors of the connection too.
        except TimeoutError:
            message = f"no reply within {self._timeout_seconds} s"
            return _Failure(message=message, reason=message, transient=True)
        except EOFError as error:
            return _Failure(message=str(error), reason="stream broken off", transient=True)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            message = f"the connection failed: {error}"
            return _Failure(message=message, reason="connection failed", transient=True)
        except aiohttp.ClientError as error:  # such as a URL without http://
            message = f"cannot send a request to {url}: {error!r}"
            return _Failure(message=message, reason="request not sent", transient=False)

    async def _read_completion(
        self, response: "aiohttp.ClientResponse", kind: _Kind, enough: _Enough = None
    ) -> ChatCompletion:
        try:
            # A server that ignores `stream` sends the whole reply at once.
            if enough is not None and response.content_type == "text/event-stream":
                return await read_streamed_completion(response.content.iter_any(), enough)
            completion = READERS[kind](await response.read())
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise PolicyError(
                f"{self._host}: the reply is not a {kind} completion: {error}", reason=NO_COMPLETION
            ) from error
        if not completion.choices:
            raise PolicyError(f"{self._host}: the reply has no choices", reason=NO_COMPLETION)
        return completion


def server_address(url: str) -> SplitResult:
    """Return the parts of the http or https URL of a server.

    Raises:
        InputError: the URL is invalid.
    """
    try:
        parts = urlsplit(url if isinstance(url, str) else "")
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # such as a port above 65535
        pass
    raise InputError(f"{url!r} is not a server URL; use one such as http://localhost:8000/v1")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(Generic[_Answer]):
    """A request that may be sent several times."""

    path: str
    body: bytes | None
    """The body of a POST request; None makes it a GET request."""
    read: "Callable[[aiohttp.ClientResponse], Awaitable[_Answer]]"
    """The function that reads the answer to a successful request."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Why an attempt failed."""

    message: str
    reason: str
    """The same failure without the server's words."""
    transient: bool
    retry_after_seconds: float | None = None
    """The server's `Retry-After`."""


async def _read_body(response: "aiohttp.ClientResponse") -> bytes:
    return await response.read()


async def _read_outcome(
    response: "aiohttp.ClientResponse", request: _Request[_Answer]
) -> "_Answer | _Failure":
    """Return the answer to a request, or why there is none."""
    wait = read_wait(response.headers)
    if response.status != 200:
        return _make_failure(response.status, read_fault(await response.read()), wait)
    try:
        return await request.read(response)
    except ReportedError as error:
        fault = error.fault
        wait = fault.retry_after_seconds if wait is None else wait
        return _make_failure(fault.status or 500, fault, wait)


def _make_failure(status: int, fault: ServerFault, retry_after_seconds: float | None) -> _Failure:
    """Return the failure of an answer with this status."""
    reason = f"HTTP {status}"
    return _Failure(
        message=f"{reason}: {fault.message[:LONGEST_MESSAGE]}",
        reason=reason,
        transient=status in (408, 429) or (status >= 500 and reason not in REJECTIONS),
        retry_after_seconds=retry_after_seconds,
    )


def _read_refusal(error: WaltzError) -> str:
    """Return the server's words if it refuses a request for what is in it."""
    refuses = isinstance(error, PolicyError) and error.reason in REJECTIONS
    return str(error) if refuses else ""


def _choose_retry_seconds(attempt: int, retry_after_seconds: float | None) -> float:
    """Return the server's choice if it has one, else an exponential backoff with jitter."""
    if retry_after_seconds is not None:
        return min(retry_after_seconds, LONGEST_RETRY_SECONDS)
    longest = min(FIRST_RETRY_SECONDS * 2.0**attempt, LONGEST_RETRY_SECONDS)
    return longest * random.uniform(0.5, 1.0)
