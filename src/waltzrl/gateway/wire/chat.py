"""`POST /v1/chat/completions`: also the API of the upstream, so requests pass almost unchanged."""

from collections.abc import Iterator, Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Answer, ChatRequest, Json, ReplyDetails
from waltzrl.gateway.keys import ANONYMOUS, Caller
from waltzrl.gateway.wire.fields import (
    as_bool,
    as_count,
    as_list,
    as_name,
    as_object,
    check_known,
    check_sampling,
    drop_empty_tools,
    drop_unset,
    has_strict_schema,
    name_call,
    read_body,
    subject_of,
    unsupported_field,
    write_arguments,
)
from waltzrl.gateway.wire.format import (
    COMMENT,
    DONE,
    chat_usage,
    encode_error,
    encode_event,
    escape_line_ends,
)
from waltzrl.gateway.wire.known import CHAT
from waltzrl.gateway.wire.prompt import prompt_of
from waltzrl.policies.chat_completion import calls_fields

MOST_CHOICES = 16

error = encode_error


def read(raw: bytes, request_id: str, caller: Caller = ANONYMOUS) -> ChatRequest:
    """Read a request; see `WireFormat.read`."""
    body = read_body(raw)
    drop_unset(body, CHAT)
    check_known(body, CHAT, caller)
    check_sampling(body)
    _check_reviewable(body)
    _complete_messages(body.get("messages"))
    drop_empty_tools(body)
    n = body.pop("n", None)
    stream = as_bool(body.pop("stream", None), "stream")
    stream_options = body.pop("stream_options", None)
    return ChatRequest(
        api="chat",
        prompt=prompt_of(body, request_id, caller),
        body=body,
        model=as_name(body.get("model"), "model"),
        n=1 if n is None else as_count(n, "n", MOST_CHOICES),
        stream=stream,
        stream_usage=wants_usage(stream_options),
        subject=subject_of(body),
        has_refusals=has_strict_schema(body),
    )


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write a reply; an unrevised draft is returned as the upstream's own bytes if possible."""
    if len(answers) == 1 and answers[0].raw is not None:
        return answers[0].raw
    return msgspec.json.encode(
        {
            "id": f"chatcmpl-{chat.prompt.id}",
            "object": "chat.completion",
            "created": answers[0].details.created or int(chat.created),
            "model": chat.model,
            "choices": [_write_choice(index, answer) for index, answer in enumerate(answers)],
            "usage": chat_usage(answers),
            **_collect_server_fields(answers[0].details),
        }
    )


def wants_usage(stream_options: Json) -> bool:
    """Return whether the client requests token counts at the end of its stream."""
    if stream_options is None:
        return False
    options = as_object(stream_options, "stream_options")
    return as_bool(options.get("include_usage"), "stream_options.include_usage")


def _check_reviewable(body: dict[str, Json]) -> None:
    """Refuse a request whose reply could not be reviewed."""
    modalities = body.get("modalities")
    if modalities is not None and modalities != ["text"]:
        as_list(modalities, "modalities")
        raise unsupported_field("modalities", 'only text can be reviewed; request ["text"]')
    if body.get("tools") is not None:
        for index, tool in enumerate(as_list(body["tools"], "tools")):
            as_object(tool, f"tools[{index}]")


SAYING = {"content", "refusal", "audio"}
"""The keys under which an assistant says something without a call."""


def _complete_messages(messages: Json) -> None:
    """Drop the fields of messages that say nothing, and write results and arguments as texts.

    Clients keep fields that are null, and empty lists of calls, of replies; many servers refuse
    both. Null as content is an assistant's that calls tools; that of a reply without a word becomes
    an empty text. What is empty clients leave out.
    """
    for message in messages if isinstance(messages, list) else ():
        if not isinstance(message, dict):
            continue
        if None in message.values() or [] in message.values():
            for key in [k for k, v in message.items() if v in (None, []) and k != "content"]:
                del message[key]
        role = message.get("role")
        if role == "tool" and message.get("content") is None:
            message["content"] = ""
        elif role == "assistant" and ("tool_calls" in message or "function_call" in message):
            _complete_calls(message)
        elif role == "assistant" and not any(map(message.get, SAYING)):
            message["content"] = ""


def _complete_calls(message: dict[str, Json]) -> None:
    calls = message.get("tool_calls")
    listed = [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    for function in (message.get("function_call"), *[call.get("function") for call in listed]):
        if isinstance(function, dict):
            function["name"] = name_call(function.get("name"))
            function["arguments"] = write_arguments(function.get("arguments"))


def _write_choice(index: int, answer: Answer) -> dict[str, object]:
    reply = answer.reply
    text = reply.text if reply.text or not reply.calls else None
    message: dict[str, object] = {
        "role": "assistant",
        "content": None if answer.refused else text,
        "refusal": text if answer.refused else None,
    }
    if reply.reasoning:
        message |= _write_reasoning(reply.reasoning)
    message |= _write_encrypted(answer) | _write_calls(answer)
    return {
        "index": index,
        "message": message,
        "logprobs": _write_logprobs(answer.details),
        "finish_reason": _choose_finish(answer),
    }


def _write_encrypted(answer: Answer) -> dict[str, object]:
    """Return the field of the reasoning that is encrypted, if the reply is the one it led to."""
    encrypted = () if answer.decision == "refused" else answer.details.encrypted
    return {"reasoning_details": encrypted} if encrypted else {}


def _write_calls(answer: Answer) -> dict[str, Json]:
    """Return the fields of the calls; Google's have a signature, without which none may return."""
    fields = calls_fields(answer.reply.calls)
    listed = fields.get("tool_calls")
    for call in listed if isinstance(listed, list) else ():
        assert isinstance(call, dict), "made above"
        if signature := answer.details.signatures.get(str(call["id"])):
            call["extra_content"] = {"google": {"thought_signature": signature}}
    return fields


def _choose_finish(answer: Answer) -> str:
    calls = calls_fields(answer.reply.calls)
    is_older = answer.finish == "tool_calls" and calls and "tool_calls" not in calls
    return "function_call" if is_older else answer.finish


def _write_reasoning(text: str) -> dict[str, str]:
    """Return the fields of reasoning: servers and clients use one name or the other."""
    return {"reasoning_content": text, "reasoning": text}


def _write_logprobs(details: ReplyDetails) -> dict[str, object] | None:
    return None if details.logprobs is None else {"content": details.logprobs, "refusal": None}


def _collect_server_fields(details: ReplyDetails) -> dict[str, Json]:
    """Return what the upstream says about itself."""
    fields = {
        "system_fingerprint": details.system_fingerprint,
        "service_tier": details.service_tier,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _encode_server_fields(details: ReplyDetails) -> bytes:
    """Return what the upstream says about itself as further fields of an object."""
    fields = _collect_server_fields(details)
    return b",%b" % msgspec.json.encode(fields)[1:-1] if fields else b""


ROLE = b'{"role":"assistant","content":"","refusal":null}'
ROLE_WITHOUT_CONTENT = b'{"role":"assistant","content":null,"refusal":null}'
"""The first delta where a refusal may follow, which clients expect without content."""


class ChatStream:
    """Writes unnamed events, and `[DONE]` at the end."""

    id_prefix, kind, content = "chatcmpl", "chat.completion.chunk", b"delta"
    """The beginning of the id, the value of `object`, and the key of what a chunk adds."""

    def __init__(self, chat: ChatRequest) -> None:
        """Encode the fields that all chunks have in common once."""
        self._chat = chat
        common = {
            "id": f"{self.id_prefix}-{chat.prompt.id}",
            "object": self.kind,
            "created": int(chat.created),
            "model": chat.model,
        }
        self._head = b'%b,"choices":' % msgspec.json.encode(common)[:-1]
        # Like OpenAI's, each chunk before the counts says that they will come.
        self._tail = b',"usage":null}' if chat.stream_usage else b"}"

    def open(self) -> bytes:
        role = ROLE_WITHOUT_CONTENT if self._chat.has_refusals else ROLE
        return b"".join(self._chunk(choice, role) for choice in range(self._chat.n))

    def keepalive(self) -> bytes:
        return COMMENT

    def reasoning(self, choice: int, delta: str) -> bytes:
        return self._chunk(choice, msgspec.json.encode(_write_reasoning(delta)))

    def text(self, choice: int, delta: str) -> bytes:
        return self._chunk(choice, b'{"content":%b}' % msgspec.json.encode(delta))

    def refusal(self, choice: int, text: str) -> bytes:
        return self._chunk(choice, b'{"refusal":%b}' % msgspec.json.encode(text))

    def retract(self, choice: int, start: int, replacement: str) -> bytes:
        """Write a chunk without choices, in which other clients find nothing to read.

        It has no event name, because some clients parse named events as another type.
        """
        retraction = msgspec.json.encode(
            {"choice": choice, "start": start, "replacement": replacement}
        )
        return encode_event(b'%b[],"waltz.retract":%b%b' % (self._head, retraction, self._tail))

    def finish(self, choice: int, answer: Answer) -> bytes:
        deltas = b"".join(self._chunk(choice, delta) for delta in _encode_last_deltas(answer))
        logprobs = msgspec.json.encode(_write_logprobs(answer.details))
        end = b'"%b"' % _choose_finish(answer).encode()
        return deltas + self._chunk(
            choice, b"{}", end, logprobs, _encode_server_fields(answer.details)
        )

    def close(self, answers: Sequence[Answer]) -> bytes:
        if not self._chat.stream_usage:
            return DONE
        usage = msgspec.json.encode(chat_usage(answers))
        server = _encode_server_fields(answers[0].details)
        return encode_event(b'%b[]%b,"usage":%b}' % (self._head, server, usage)) + DONE

    def error(self, error: RequestError, request_id: str = "") -> bytes:
        return encode_event(encode_error(error, request_id)) + DONE

    def _chunk(
        self,
        choice: int,
        delta: bytes,
        finish: bytes = b"null",
        logprobs: bytes = b"null",
        server: bytes = b"",
    ) -> bytes:
        event = b'data: %b[{"index":%d,"%b":%b,"logprobs":%b,"finish_reason":%b}]%b%b\n\n' % (
            self._head,
            choice,
            self.content,
            delta,
            logprobs,
            finish,
            server,
            self._tail,
        )
        return escape_line_ends(event)


writer = ChatStream


def _encode_last_deltas(answer: Answer) -> Iterator[bytes]:
    """Yield a delta for the reasoning that is encrypted, and for each call."""
    if encrypted := _write_encrypted(answer):
        yield msgspec.json.encode(encrypted)
    calls = _write_calls(answer)
    listed = calls.pop("tool_calls", None)
    for index, call in enumerate(listed if isinstance(listed, list) else ()):
        assert isinstance(call, dict), "made above"
        yield msgspec.json.encode({"tool_calls": [{"index": index, **call}]})
    if calls:
        yield msgspec.json.encode(calls)
