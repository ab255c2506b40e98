"""Portkey's webhook guardrail: reviews replies that Portkey's gateway has received."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from waltzrl.gateway.exchange import ChatRequest, GatewayRequest, Json
from waltzrl.gateway.gateway import Gateway
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.reviews import encode_guarded_chat, explain_review
from waltzrl.gateway.wire import CHAT
from waltzrl.gateway.wire.fields import (
    as_list,
    as_object,
    as_text,
    invalid_field,
    objects_in,
    read_object,
    read_reply,
)
from waltzrl.gateway.wire.messages import convert_assistant_content
from waltzrl.records import Reply

BEFORE, AFTER = "beforeRequestHook", "afterRequestHook"
MOST_CHOICES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HookedReply:
    """One reply in the JSON of a provider's answer, and how another text takes its place."""

    reply: Reply
    replace: Callable[[str], None]
    """Writes a text into the JSON, without tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """A call of the webhook."""

    chat: ChatRequest
    answer: dict[str, Json]
    """The JSON of the provider's answer."""
    replies: tuple[HookedReply, ...]
    """Empty before the request: the gateway reviews replies, not prompts."""


def read_hook(raw: bytes, request_id: str, caller: Caller) -> Hook:
    """Read `{"eventType": ..., "request": {"json": ...}, "response": {"json": ...}}`.

    Raises:
        RequestError: 400, naming the field; also for an answer without a reply to review.
    """
    body = read_object(raw)
    event = body.get("eventType")
    if event not in (BEFORE, AFTER):
        raise invalid_field("eventType", event, f"{BEFORE} or {AFTER}")
    request = as_object(as_object(body.get("request"), "request").get("json"), "request.json")
    chat = CHAT.read(encode_guarded_chat({"request_data": request}), request_id, caller)
    if event == BEFORE:
        return Hook(chat=chat, answer={}, replies=())
    where = "response.json"
    answer = as_object(as_object(body.get("response"), "response").get("json"), where)
    if body.get("requestType") == "messages":
        return Hook(chat=chat, answer=answer, replies=(_read_message(answer, where),))
    choices = as_list(answer.get("choices"), f"{where}.choices")
    if not 1 <= len(choices) <= MOST_CHOICES:
        raise invalid_field(f"{where}.choices", choices, f"1 to {MOST_CHOICES} choices")
    replies = tuple(_read_choice(*choice) for choice in objects_in(choices, f"{where}.choices"))
    return Hook(chat=chat, answer=answer, replies=replies)


async def answer_hook(gateway: Gateway, request: GatewayRequest, hook: Hook) -> bytes:
    """Answer the webhook.

    The verdict is false where a reply was refused. The answer is returned whenever it was changed,
    because Portkey sends it on after a false verdict too, unless its guardrail denies.

    Raises:
        RequestError: the upstream failed.
    """
    reasons, changed = [], False
    for number, hooked in enumerate(hook.replies):
        reviewed = await gateway.review(request, hooked.reply, number)
        if reviewed.decision != "draft":
            hooked.replace(reviewed.reply.text)
            changed = True
        if reviewed.decision == "refused":
            reasons.append(explain_review(reviewed))
    verdict: dict[str, object] = {"verdict": not reasons}
    if reasons:
        verdict["data"] = {"reasons": reasons}
    if changed:
        verdict["transformedData"] = {"response": {"json": hook.answer}}
    return msgspec.json.encode(verdict)


def _read_choice(choice: dict[str, Json], where: str) -> HookedReply:
    """Read a choice of a chat completion, or of a legacy completion."""

    def replace(text: str) -> None:
        # They spell the text that is replaced.
        choice.pop("logprobs", None)
        choice["finish_reason"] = "stop"
        if "message" in choice:
            choice["message"] = {"role": "assistant", "content": text}
        else:
            choice["text"] = text

    if "message" not in choice:
        text = as_text(choice.get("text"), f"{where}.text")
        return HookedReply(reply=Reply(text=text), replace=replace)
    message = as_object(choice["message"], f"{where}.message")
    return HookedReply(reply=read_reply(message, f"{where}.message"), replace=replace)


def _read_message(answer: dict[str, Json], where: str) -> HookedReply:
    """Read a message of Anthropic's API."""

    def replace(text: str) -> None:
        answer["content"] = [{"type": "text", "text": text}]
        answer["stop_reason"] = "end_turn"

    message = convert_assistant_content(answer.get("content"), f"{where}.content")
    return HookedReply(reply=read_reply(message, where), replace=replace)
