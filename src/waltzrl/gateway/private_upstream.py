"""An upstream that gets no personal data which the scanner finds: `privacy.upstream`.

Every text of a request is searched: turns, system turns, results and arguments of tools, text
files, descriptions and values in schemas, documents, stop sequences, ids of users. What is left as
it is: names of models, tools and fields, ids of calls, the words of the formats, numbers outside of
JSON, addresses of images, which the server has to load, and what is no text, such as an image. A
body that cannot be searched is not passed on.
"""

import asyncio
import base64
import re
from collections.abc import Collection, Mapping
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from urllib.parse import unquote_plus

import msgspec
from msgspec import structs

from waltzrl.errors import RequestError
from waltzrl.gateway.chat_reader import UNREADABLE
from waltzrl.gateway.exchange import (
    ChatBody,
    Deltas,
    Json,
    ModelCard,
    ReplyDetails,
    Upstream,
    UpstreamDelta,
    UpstreamReply,
    UpstreamRequest,
    UpstreamResponse,
)
from waltzrl.gateway.health import Health
from waltzrl.gateway.wire.prompt import (
    CHARSET,
    ENCODED,
    ID,
    ID_KEYS,
    SHORT,
    decode_text_file,
)
from waltzrl.records import Reply, ToolCall
from waltzrl.store.privacy.detection import Detector
from waltzrl.store.privacy.stand_ins import StandIns, StandInStream

LONGEST_AT_ONCE = 64_000
"""Characters of a request; a longer one is searched in another thread, so that nobody waits."""
FORMAT_KEYS = frozenset(("$ref", "detail", "format", "model", "required", "role", "type"))
"""Keys whose texts are words of the formats, or names of fields."""
NAMED = frozenset(
    ("custom", "function", "function_call", "functions", "json_schema", "tool_choice", "tools")
)
"""Keys of what has a name that is no text: tools and schemas."""
DATA = frozenset(("const", "default", "documents", "examples", "input", "metadata"))
"""Keys of objects that are data of the client, in which a key is a hint about its value."""
WORDS = frozenset(
    ("content", "prompt", "query", "reasoning", "reasoning_content", "refusal", "text", "user")
)
"""Keys of what people and models write, which is text also where it looks like encoded data."""
LOADED = frozenset(("image_url", "input_audio", "source", "video_url"))
"""Keys of what is no text, or has the address of what is none."""
BASE64 = re.compile(r"(?:data:[^,]*,)?[\w+/=\r\n-]*", re.ASCII | re.IGNORECASE)
"""The content of a file that is no text, or text that is encoded without a word that says so."""
ADDRESS_FORMATS = ('"format":"email"', '"format":"idn-email"')
"""How a JSON schema says that a text is an e-mail address."""


class PrivateUpstream:
    """Sends stand-ins in the place of personal data, and restores it in the replies.

    Each request has stand-ins of its own, in memory until its reply is there; the same conversation
    gets the same ones. They are restored in texts, reasoning, refusals and arguments of calls. The
    server's own words about a failure keep them.
    """

    def __init__(self, upstream: Upstream, detector: Detector, *, numbered: bool) -> None:
        """Wrap an upstream; see `StandIns` for the other arguments."""
        self._upstream = upstream
        self._detector, self._numbered = detector, numbered

    async def complete(
        self, body: ChatBody, bearer: str | None, received: list[bytes] | None = None
    ) -> UpstreamReply:
        concealed, stand_ins = await self._conceal(body)
        parts: list[bytes] = []
        try:
            upstream_reply = await self._upstream.complete(concealed, bearer, parts)
        finally:
            if received is not None:  # what had come of the reply when its request was cancelled
                received[:] = [_restore_body(b"".join(parts), stand_ins)] if parts else []
        if not stand_ins.restores:
            return upstream_reply
        return _restore_reply(upstream_reply, stand_ins, in_json=_asks_for_json(body))

    async def stream(self, body: ChatBody, bearer: str | None) -> Deltas:
        concealed, stand_ins = await self._conceal(body)
        restoring = _DeltaRestorer(stand_ins, in_json=_asks_for_json(body))
        async with aclosing(self._upstream.stream(concealed, bearer)) as deltas:
            async for delta in deltas:
                yield restoring.restored(delta) if stand_ins.restores else delta
        if rest := restoring.rest():
            yield UpstreamDelta(text=rest)

    async def forward(self, request: UpstreamRequest) -> UpstreamResponse:
        """Return the response to a request that is no chat, with the pieces restored in its texts.

        Raises:
            RequestError: 403, the path has personal data, or the body is not JSON, so that nobody
                can say what is in it; or as `Upstream.forward`.
        """
        if self._detector.find(unquote_plus(request.path)):
            raise _unsearchable_error("the path has personal data")
        if not request.body:
            return await self._upstream.forward(request)
        try:
            body: Json = msgspec.json.decode(request.body)
        except UNREADABLE as error:
            raise _unsearchable_error("the body is not JSON, so it cannot be searched") from error
        concealed, stand_ins = await self._conceal(body if isinstance(body, dict) else {"": body})
        # Not the bytes that came: of a key that they have twice only the last value was searched.
        sent = msgspec.json.encode(concealed if isinstance(body, dict) else concealed[""])
        response = await self._upstream.forward(structs.replace(request, body=sent))
        return structs.replace(response, body=_restore_body(response.body, stand_ins))

    async def models(self, bearer: str | None) -> list[ModelCard]:
        return await self._upstream.models(bearer)

    @property
    def names(self) -> Collection[str]:
        return self._upstream.names

    def health(self) -> Health:
        return self._upstream.health()

    async def _conceal(self, body: ChatBody) -> tuple[Mapping[str, Json], StandIns]:
        """Return a request with stand-ins, and what restores them."""
        written = msgspec.json.encode(body).decode()
        stand_ins = StandIns(
            self._detector,
            numbered=self._numbered,
            written=written,
            as_addresses=any(form in written for form in ADDRESS_FORMATS),
        )
        conceal = partial(stand_ins.conceal_all, body, partial(_conceal_body, stand_ins))
        if len(written) <= LONGEST_AT_ONCE:
            return conceal(), stand_ins
        return await asyncio.to_thread(conceal), stand_ins


class _DeltaRestorer:
    """Restores the deltas of one stream."""

    def __init__(self, stand_ins: StandIns, *, in_json: bool) -> None:
        self._stand_ins, self._in_json = stand_ins, in_json
        self._text, self._reasoning = StandInStream(stand_ins), StandInStream(stand_ins)

    def restored(self, delta: UpstreamDelta) -> UpstreamDelta:
        """Return a delta with what is settled of its texts."""
        reasoning = self._reasoning.add(delta.reasoning)
        text = self._text.add(delta.text, in_json=self._in_json and not delta.refused)
        if delta.text or delta.finish is not None:  # reasoning precedes the text
            reasoning += self._reasoning.end()
        if delta.finish is not None:
            text += self._text.end()
        details, begun = delta.details, delta.begun
        return structs.replace(
            delta,
            reasoning=reasoning,
            text=text,
            calls=_restore_calls(delta.calls, self._stand_ins),
            begun=begun and (lambda: _restore_calls(begun(), self._stand_ins)),
            details=details and _restore_details(details, self._stand_ins),
        )

    def rest(self) -> str:
        """Return the text that was held back at the end of the stream."""
        return self._text.end()


def _conceal_body(stand_ins: StandIns, body: ChatBody) -> ChatBody:
    """Conceal what stays the same in a conversation first, so that its stand-ins stay the same."""
    last = sorted(body, key=lambda key: key == "messages")
    concealed = {key: _conceal_value(stand_ins, body[key], key) for key in last}
    return {key: concealed[key] for key in body}


def _conceal_value(stand_ins: StandIns, value: Json, key: str, holder: str = "") -> Json:
    """Conceal the texts of a value.

    Args:
        stand_ins: replaces.
        value: stands under `key`, in a list or by itself.
        key: its key.
        holder: the key of the object in which that key is.
    """
    if isinstance(value, str):
        if key == "file_data":
            return _conceal_file(stand_ins, value)
        return stand_ins.conceal(value) if _is_text(value, key, holder) else value
    if key in DATA and value is not None:
        return stand_ins.conceal_value(value)
    if isinstance(value, Mapping):
        # The source of a document may be its text, in the key of what is none.
        named = {"data": "text"} if value.get("type") == "text" else {}
        return {
            name: _conceal_value(stand_ins, item, named.get(name, name), key)
            for name, item in value.items()
        }
    if isinstance(value, list):
        return [_conceal_value(stand_ins, item, key, holder) for item in value]
    return value


def _is_text(value: str, key: str, holder: str) -> bool:
    """Return whether a string is text that may hold personal data."""
    if key in FORMAT_KEYS or (key == "name" and holder in NAMED):
        return False
    if key in ID_KEYS and ID.fullmatch(value):
        return False
    if key == "image_url" or (holder in LOADED and key in ("data", "url")):
        return False
    return key in WORDS or not (len(value) > SHORT and ENCODED.fullmatch(value))


def _conceal_file(stand_ins: StandIns, data: str) -> str:
    """Conceal what is in a text file; the content of any other cannot be searched."""
    text = decode_text_file(data)
    if text is None:
        return stand_ins.conceal(data) if BASE64.fullmatch(data) is None else data
    concealed = stand_ins.conceal(text)
    if concealed == text:
        return data
    # The text is encoded anew, in UTF-8 whatever it was before.
    kind = CHARSET.sub(r"\1utf-8", data.partition(",")[0].removesuffix(";base64"))
    return f"{kind};base64,{base64.b64encode(concealed.encode(errors='replace')).decode()}"


def _asks_for_json(body: ChatBody) -> bool:
    """Return whether the text of the reply will be JSON."""
    response_format = body.get("response_format")
    return isinstance(response_format, dict) and response_format.get("type") != "text"


def _restore_reply(
    upstream_reply: UpstreamReply, stand_ins: StandIns, *, in_json: bool
) -> UpstreamReply:
    reply: Reply = upstream_reply.reply
    in_json = in_json and not upstream_reply.refused
    restored = replace(
        reply,
        text=stand_ins.restore(reply.text, in_json=in_json),
        reasoning=stand_ins.restore(reply.reasoning),
        calls=_restore_calls(reply.calls, stand_ins),
    )
    details = _restore_details(upstream_reply.details, stand_ins)
    # The bytes have the stand-ins.
    return structs.replace(upstream_reply, reply=restored, raw=None, details=details)


def _restore_calls(calls: tuple[ToolCall, ...], stand_ins: StandIns) -> tuple[ToolCall, ...]:
    return tuple(
        replace(
            call,
            arguments=(
                stand_ins.restore(call.arguments)
                if call.kind == "custom"  # its input is free text
                else stand_ins.restore_json(call.arguments)
            ),
        )
        for call in calls
    )


def _restore_details(details: ReplyDetails, stand_ins: StandIns) -> ReplyDetails:
    """Restore the stop sequence. Log-probabilities are of the stand-ins, so there are none."""
    stop = details.stop_sequence
    return structs.replace(
        details, logprobs=None, stop_sequence=None if stop is None else stand_ins.restore(stop)
    )


def _restore_body(body: bytes, stand_ins: StandIns) -> bytes:
    """Restore the texts of a response, whole or truncated; leave what is no text."""
    if not stand_ins.restores:
        return body
    # A truncated body may end within a character.
    return stand_ins.restore_json(body.decode(errors="surrogateescape")).encode(
        errors="surrogateescape"
    )


def _unsearchable_error(cause: str) -> RequestError:
    return RequestError(
        403,
        "permission",
        f"{cause}, and with privacy.upstream it is not passed on; send it to the model itself, or "
        "ask the operator",
    )
