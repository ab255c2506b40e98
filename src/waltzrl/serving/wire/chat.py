"""`POST /v1/chat/completions`: the gateway's own format, since the upstream speaks it as well."""

import time
from collections.abc import Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import ToolCall
from waltzrl.serving.exchange import Answer, Api, ChatRequest, Json
from waltzrl.serving.wire.fields import (
    as_bool,
    as_count,
    as_list,
    as_name,
    as_object,
    check_sampling,
    prompt_of,
    read_object,
    subject_of,
    unsupported,
)
from waltzrl.serving.wire.format import COMMENT, DONE, chat_usage, error_object, event

MOST_CHOICES = 16

api: Api = "chat"


def read(raw: bytes, request_id: str) -> ChatRequest:
    """Read a request; see `Dialect.read`."""
    body = read_object(raw)
    check_sampling(body)
    _check_reviewable(body)
    n = body.pop("n", None)
    stream = as_bool(body.pop("stream", None), "stream")
    stream_options = body.pop("stream_options", None)
    return ChatRequest(
        api=api,
        prompt=prompt_of(body.get("messages"), request_id),
        body=body,
        model=as_name(body.get("model"), "model"),
        n=1 if n is None else as_count(n, "n", MOST_CHOICES),
        stream=stream,
        stream_usage=_wants_usage(stream_options),
        subject=subject_of(body),
    )


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write a reply; one that may go out as it came is not spelt again."""
    if len(answers) == 1 and answers[0].raw is not None:
        return answers[0].raw
    return msgspec.json.encode(
        {
            "id": f"chatcmpl-{chat.prompt.id}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": chat.model,
            "choices": [_choice(place, answer) for place, answer in enumerate(answers)],
            "usage": chat_usage(answers),
        }
    )


def writer(chat: ChatRequest) -> "ChatStream":
    """Return the writer of this request's stream."""
    return ChatStream(chat)


def error(error: RequestError, request_id: str = "") -> bytes:
    """Write an error."""
    return msgspec.json.encode({"error": error_object(error)})


def _check_reviewable(body: dict[str, Json]) -> None:
    """Refuse what nobody could review."""
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        as_list(modalities, "modalities")
        raise unsupported("modalities", 'replies are reviewed as text; ask for ["text"] only')
    if body.get("tools") is not None:
        for place, tool in enumerate(as_list(body["tools"], "tools")):
            as_object(tool, f"tools[{place}]")


def _wants_usage(stream_options: Json) -> bool:
    if stream_options is None:
        return False
    found = as_object(stream_options, "stream_options")
    return as_bool(found.get("include_usage"), "stream_options.include_usage")


def _choice(place: int, answer: Answer) -> dict[str, object]:
    message: dict[str, object] = {
        "role": "assistant",
        "content": answer.reply.text if answer.reply.text or not answer.reply.calls else None,
        "refusal": None,
    }
    if answer.reply.calls:
        message["tool_calls"] = [_call(call) for call in answer.reply.calls]
    return {"index": place, "message": message, "logprobs": None, "finish_reason": answer.finish}


def _call(call: ToolCall) -> dict[str, object]:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }


ROLE = b'{"role":"assistant","content":"","refusal":null}'


class ChatStream:
    """Writes `data:` lines without names, `[DONE]` last."""

    def __init__(self, chat: ChatRequest) -> None:
        """Prepare what all chunks of `chat` have in common."""
        self._chat = chat
        common = {
            "id": f"chatcmpl-{chat.prompt.id}",
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": chat.model,
        }
        self._head = b'%b,"choices":' % msgspec.json.encode(common)[:-1]
        self._tail = b',"usage":null}' if chat.stream_usage else b"}"

    def open(self) -> bytes:
        return b"".join(self._chunk(choice, ROLE) for choice in range(self._chat.n))

    def keepalive(self) -> bytes:
        return COMMENT

    def text(self, choice: int, delta: str) -> bytes:
        return self._chunk(choice, b'{"content":%b}' % msgspec.json.encode(delta))

    def calls(self, choice: int, calls: Sequence[ToolCall]) -> bytes:
        return b"".join(
            self._chunk(choice, b'{"tool_calls":[%b]}' % _streamed_call(place, call))
            for place, call in enumerate(calls)
        )

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write a chunk without choices: what does not know its extra key has nothing to read.

        It has no event name, because some clients take chunks of named events for another type.
        """
        retraction = msgspec.json.encode(
            {"choice": choice, "start": start, "replacement": replacement}
        )
        return event(b'%b[],"waltz.retract":%b%b' % (self._head, retraction, self._tail))

    def finish(self, choice: int, answer: Answer) -> bytes:
        return self._chunk(choice, b"{}", b'"%b"' % answer.finish.encode())

    def close(self, answers: Sequence[Answer]) -> bytes:
        if not self._chat.stream_usage:
            return DONE
        usage = msgspec.json.encode(chat_usage(answers))
        return event(b'%b[],"usage":%b}' % (self._head, usage)) + DONE

    def error(self, error: RequestError) -> bytes:
        return event(msgspec.json.encode({"error": error_object(error)})) + DONE

    def _chunk(self, choice: int, delta: bytes, finish: bytes = b"null") -> bytes:
        return b'data: %b[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]%b\n\n' % (
            self._head,
            choice,
            delta,
            finish,
            self._tail,
        )


def _streamed_call(place: int, call: ToolCall) -> bytes:
    return msgspec.json.encode({"index": place, **_call(call)})
