"""A policy behind an OpenAI-compatible server: vLLM, a hosted model, or a gateway."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from waltzrl.errors import PolicyError
from waltzrl.policies.chat_completion import (
    ChatCompletion,
    ServerError,
    chat_message,
    streamed,
)
from waltzrl.policies.policy import Sampling
from waltzrl.records import Message, Reply, Usage, estimate_usage

FIRST_WAIT_SECONDS = 0.25
LONGEST_WAIT_SECONDS = 30.0

_Enough = Callable[[str], bool] | None
_Answer = TypeVar("_Answer")


class RemotePolicy:
    """Replies through `POST {base_url}/chat/completions`.

    Close it with `aclose`, or use it as an asynchronous context manager.
    """

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key: str | None = None,
        concurrency: int = 16,
        timeout_seconds: float = 60.0,
        retries: int = 3,
    ) -> None:
        """Describe the server; nothing is opened before the first reply.

        Args:
            base_url: up to and without `/chat/completions`, such as `http://localhost:8000/v1`.
            model: the name by which the server knows it.
            api_key: sent as a bearer token.
            concurrency: most requests under way at once; further calls wait.
            timeout_seconds: for one attempt, from sending to the whole reply.
            retries: attempts after the first, for failures that may pass.
        """
        self.model = model
        self._base_url = base_url.rstrip("/")
        self._host = urlsplit(base_url).netloc
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._concurrency = concurrency
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None
        self._slots = asyncio.Semaphore(concurrency)

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the next assistant turn.

        Where the sampling says what is enough, the reply is streamed, and the connection closed
        at that point, which tells the server to stop; then the token counts are estimated.

        Raises:
            PolicyError: the server refused, or still failed after every retry.
        """
        started = time.perf_counter()
        completion = await self.complete(messages, sampling)
        choice = completion.choices[0]
        text = choice.message.content or ""
        return Reply(
            text=sampling.cut(text),
            finish="length" if choice.finish_reason == "length" else "stop",
            usage=self._usage(completion, messages, text, streamed=sampling.enough is not None),
            milliseconds=(time.perf_counter() - started) * 1e3,
        )

    def _usage(
        self, completion: ChatCompletion, messages: Sequence[Message], text: str, *, streamed: bool
    ) -> Usage | None:
        """Return the server's count; of a stream that was left before its count, an estimate."""
        model = completion.model or self.model
        if counted := completion.usage:
            return Usage(
                input_tokens=counted.prompt_tokens,
                output_tokens=counted.completion_tokens,
                model=model,
            )
        prompt = "".join(message.full_text for message in messages)
        return estimate_usage(prompt, text, model) if streamed else None

    async def complete(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        headers: Mapping[str, str] | None = None,
    ) -> ChatCompletion:
        """Return all that the server says, with `headers` added to the request.

        Raises:
            PolicyError: as `reply`.
        """
        asked: dict[str, object] = {
            "model": self.model,
            "messages": [chat_message(message) for message in messages],
            "temperature": sampling.temperature,
            "max_tokens": sampling.max_new_tokens,
        }
        if sampling.enough is not None:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        return await self._send(
            _Request(
                path="/chat/completions",
                body=msgspec.json.encode(asked),
                headers=headers or {},
                read=partial(self._read, enough=sampling.enough),
            )
        )

    async def post(self, path: str, body: bytes) -> bytes:
        """Send JSON to another path of the server, and return what it answers.

        Args:
            path: below the base URL; begins with a slash, such as `/review`.
            body: of the request.

        Raises:
            PolicyError: as `reply`.
        """
        return await self._send(_Request(path=path, body=body, read=aiohttp.ClientResponse.read))

    async def aclose(self) -> None:
        """Close the connections; a later reply opens new ones."""
        if self._session is not None:
            await self._session.close()

    async def __aenter__(self) -> "RemotePolicy":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(timeout=self._timeout, headers=self._headers)
            self._slots = asyncio.Semaphore(self._concurrency)
        return self._session

    async def _send(self, request: "_Request[_Answer]") -> _Answer:
        """Send a request, and again while the failure may pass."""
        session = self._open()
        async with self._slots:
            attempt = 0
            while True:
                outcome = await self._ask(session, request)
                if not isinstance(outcome, _Failure):
                    return outcome
                if not outcome.may_pass or attempt == self._retries:
                    raise PolicyError(f"{self._host}: {outcome.reason} (attempt {attempt + 1})")
                await asyncio.sleep(_wait_seconds(attempt, outcome.retry_after_seconds))
                attempt += 1

    async def _ask(
        self, session: aiohttp.ClientSession, request: "_Request[_Answer]"
    ) -> "_Answer | _Failure":
        url = f"{self._base_url}{request.path}"
        headers = {"Content-Type": "application/json", **request.headers}
        try:
            async with session.post(url, data=request.body, headers=headers) as response:
                if response.status == 200:
                    return await request.read(response)
                return _Failure(
                    reason=f"HTTP {response.status}: {_server_message(await response.read())}",
                    may_pass=response.status in (408, 429) or response.status >= 500,
                    retry_after_seconds=_retry_after_seconds(response.headers),
                )
        except TimeoutError:
            return _Failure(reason=f"no reply within {self._timeout.total} s", may_pass=True)
        except EOFError as error:
            return _Failure(reason=str(error), may_pass=True)
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            return _Failure(reason=f"the connection failed: {error}", may_pass=True)
        except aiohttp.ClientError as error:  # such as a server's address without http://
            return _Failure(reason=f"{url} cannot be asked: {error!r}", may_pass=False)

    async def _read(self, response: aiohttp.ClientResponse, enough: _Enough) -> ChatCompletion:
        try:
            if enough is not None and response.content_type == "text/event-stream":
                return await streamed(response.content.iter_any(), enough)
            completion = msgspec.json.decode(await response.read(), type=ChatCompletion)
        except msgspec.DecodeError as error:
            raise PolicyError(
                f"{self._host}: the reply is not a chat completion: {error}"
            ) from error
        if not completion.choices:
            raise PolicyError(f"{self._host}: the reply has no choices")
        return completion


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request(Generic[_Answer]):
    """What is sent, once or several times."""

    path: str
    body: bytes
    read: Callable[[aiohttp.ClientResponse], Awaitable[_Answer]]
    """Reads the answer of a request that succeeded."""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Failure:
    """Why an attempt brought no reply."""

    reason: str
    may_pass: bool
    retry_after_seconds: float | None = None
    """What the server asked us to wait."""


class _ErrorBody(msgspec.Struct):
    error: ServerError


def _server_message(answer: bytes) -> str:
    try:
        return msgspec.json.decode(answer, type=_ErrorBody).error.message
    except msgspec.DecodeError:
        return answer.decode("utf-8", "replace").strip()[:200] or "no message"


def _wait_seconds(attempt: int, asked_seconds: float | None) -> float:
    """Wait as long as the server asked, else twice as long each time, with jitter."""
    if asked_seconds is not None:
        return min(asked_seconds, LONGEST_WAIT_SECONDS)
    longest = min(FIRST_WAIT_SECONDS * 2.0**attempt, LONGEST_WAIT_SECONDS)
    return longest * random.uniform(0.5, 1.0)


def _retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """Read `Retry-After`, a number of seconds or a date."""
    asked = headers.get("Retry-After", "")
    try:
        return max(0.0, float(asked))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(asked) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None
