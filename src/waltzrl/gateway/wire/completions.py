"""`POST /v1/completions`, OpenAI's legacy API: each prompt is asked as a chat of one message."""

from collections.abc import Sequence

import msgspec

from waltzrl.gateway.exchange import Answer, ChatRequest, Json
from waltzrl.gateway.keys import ANONYMOUS, Caller
from waltzrl.gateway.wire.chat import MOST_CHOICES, ChatStream, wants_usage
from waltzrl.gateway.wire.fields import (
    as_bool,
    as_count,
    as_name,
    as_text,
    check_known,
    check_sampling,
    drop_unset,
    invalid_field,
    read_body,
    subject_of,
    unsupported_field,
)
from waltzrl.gateway.wire.format import COMMENT, chat_usage, encode_error
from waltzrl.gateway.wire.known import CHAT
from waltzrl.gateway.wire.prompt import prompt_of

MAX_TOKENS = 16
"""The number of tokens that this API generates when `max_tokens` is missing, unlike a chat."""
CONVERTED = (
    "best_of",
    "echo",
    "function_call",
    "functions",
    "logprobs",
    "messages",
    "modalities",
    "n",
    "prompt",
    "stream",
    "stream_options",
    "suffix",
    "tool_choice",
    "tools",
)
"""Keys that are read here, or that this API does not have."""
KNOWN = CHAT.union(CONVERTED)
REFUSED = {
    "echo": "the prompt is not repeated; remove it",
    "logprobs": "a chat has no log-probabilities of this format; use /v1/chat/completions",
    "suffix": "a chat cannot fill a gap; remove it",
}

error = encode_error


def read(raw: bytes, request_id: str, caller: Caller = ANONYMOUS) -> ChatRequest:
    """Read a request; see `WireFormat.read`."""
    body = read_body(raw)
    drop_unset(body, KNOWN)
    check_known(body, KNOWN, caller)
    check_sampling(body)
    for key, why in REFUSED.items():
        value = body.get(key)
        # Not `not value`: 0 log-probabilities ask for those of the chosen tokens.
        if not (value is None or value is False or value == ""):
            raise unsupported_field(key, why)
    prompts = _read_prompts(body.get("prompt"))
    n = 1 if body.get("n") is None else as_count(body["n"], "n", MOST_CHOICES)
    if len(prompts) * n > MOST_CHOICES:
        raise invalid_field("prompt", body["prompt"], f"{MOST_CHOICES} choices or fewer in all")
    if body.get("best_of") not in (None, n):
        raise unsupported_field("best_of", "every choice is returned; remove it")
    options = {key: value for key, value in body.items() if key not in CONVERTED}
    if options.get("max_tokens") is None and options.get("max_completion_tokens") is None:
        options["max_tokens"] = MAX_TOKENS
    chats: list[dict[str, Json]] = [
        {**options, "messages": [{"role": "user", "content": prompt}]} for prompt in prompts
    ]
    parts = tuple(
        ChatRequest(
            api="completions",
            prompt=prompt_of(chat, request_id, caller),
            body=chat,
            model=as_name(body.get("model"), "model"),
            n=n,
            stream=as_bool(body.get("stream"), "stream"),
            stream_usage=wants_usage(body.get("stream_options")),
            subject=subject_of(body),
            shows_reasoning=False,
        )
        for chat in chats
    )
    if len(parts) == 1:
        return parts[0]
    return msgspec.structs.replace(parts[0], n=len(parts) * n, parts=parts)


def write(chat: ChatRequest, answers: Sequence[Answer]) -> bytes:
    """Write the texts of all choices: those of the first prompt, then those of the second."""
    choices = [
        {
            "index": index,
            "text": answer.reply.text,
            "logprobs": None,
            "finish_reason": _convert_finish(answer),
        }
        for index, answer in enumerate(answers)
    ]
    return msgspec.json.encode(
        {
            "id": f"cmpl-{chat.prompt.id}",
            "object": "text_completion",
            "created": answers[0].details.created or int(chat.created),
            "model": chat.model,
            "choices": choices,
            "usage": chat_usage(answers),
        }
    )


class CompletionsStream(ChatStream):
    """Writes the chunks of a chat's stream, with `text` in the place of `delta`."""

    id_prefix, kind, content = "cmpl", "text_completion", b"text"

    def open(self) -> bytes:
        return COMMENT

    def text(self, choice: int, delta: str) -> bytes:
        return self._chunk(choice, msgspec.json.encode(delta))

    def finish(self, choice: int, answer: Answer) -> bytes:
        """Write no calls: this API has none."""
        return self._chunk(choice, b'""', b'"%b"' % _convert_finish(answer).encode())


writer = CompletionsStream


def _convert_finish(answer: Answer) -> str:
    return "stop" if answer.finish == "tool_calls" else answer.finish


def _read_prompts(prompt: Json) -> list[str]:
    """Return the prompts; token ids are refused, because the reviewers read text.

    Raises:
        RequestError: it is neither a text nor a list of texts.
    """
    if isinstance(prompt, str):
        return [as_text(prompt, "prompt")]
    if not isinstance(prompt, list) or not prompt or not isinstance(prompt[0], str):
        raise invalid_field("prompt", prompt, "a text or a list of texts; tokens have no review")
    return [as_text(text, f"prompt[{index}]") for index, text in enumerate(prompt)]
