"""Reviewing replies that the caller already has: our own endpoint, and LiteLLM's guardrail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from waltzrl.errors import RequestError
from waltzrl.records import Feedback, Reply
from waltzrl.serving.exchange import Answer, ChatRequest, GatewayRequest, Json
from waltzrl.serving.gateway import Gateway
from waltzrl.serving.wire import CHAT
from waltzrl.serving.wire.fields import read_object

NO_MODEL = "none"
"""Stands for the model in a request that asks for no revision."""
MOST_TEXTS = 100
"""Replies of one guardrail request; they are reviewed one after the other."""
UNREVIEWED = Feedback(unsafe=False, overrefuse=False, well_formed=False)
"""What a gateway that reviews nothing says of a reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A reply to review, what it answers, and whether it is to be mended."""

    chat: ChatRequest
    reply: Reply
    revise: bool


def read_review(raw: bytes, request_id: str) -> Draft:
    """Read `{"messages": [...] or "prompt": "...", "reply": "...", "revise": false, "model": ...}`.

    Raises:
        RequestError: 400, naming the field.
    """
    asked = read_object(raw)
    reply, revise = asked.pop("reply", None), asked.pop("revise", False)
    if not isinstance(reply, str):
        raise _wrong("reply must be a string: the text to review")
    if not isinstance(revise, bool):
        raise _wrong("revise must be true or false")
    if "prompt" in asked:
        asked["messages"] = [{"role": "user", "content": asked.pop("prompt")}]
    if not revise:
        asked.setdefault("model", NO_MODEL)
    chat = CHAT.read(msgspec.json.encode(asked), request_id)
    return Draft(
        chat=msgspec.structs.replace(chat, n=1),
        reply=Reply(text=reply),
        revise=revise,
    )


def write_review(answer: Answer) -> bytes:
    """Spell a reviewed draft: the labels of its first review, and what should be sent."""
    said = answer.collaboration
    assert said is not None
    feedback = said.rounds[0].feedback if said.rounds else UNREVIEWED
    return msgspec.json.encode(
        {
            "id": said.prompt.id,
            "object": "waltzrl.review",
            "unsafe": feedback.unsafe,
            "overrefuse": feedback.overrefuse,
            "reviewed": feedback.well_formed,
            "risk": feedback.risk,
            "rules": feedback.rules,
            "feedback": feedback.text,
            "decision": answer.decision,
            "reply": answer.reply.text,
        }
    )


def read_guardrail(raw: bytes, request_id: str) -> tuple[ChatRequest, list[str]]:
    """Read LiteLLM's generic guardrail request: the conversation, and the replies to review.

    There are none when it is about a request: not the question is judged here but the answer.

    Raises:
        RequestError: 400, naming the field.
    """
    asked = read_object(raw)
    texts = asked.get("texts")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _wrong("texts must be a list of strings")
    if len(texts) > MOST_TEXTS:
        raise _wrong(f"texts: got {len(texts)}; need {MOST_TEXTS} or fewer")
    if asked.get("input_type") not in ("request", "response"):
        raise _wrong('input_type must be "request" or "response"')
    chat = CHAT.read(_chat(asked), request_id)
    return chat, [] if asked["input_type"] == "request" else [str(text) for text in texts]


async def guardrail(gateway: Gateway, request: GatewayRequest, texts: Sequence[str]) -> bytes:
    """Answer LiteLLM's generic guardrail request.

    Replies are mended: `GUARDRAIL_INTERVENED` with new texts; one that cannot be mended is
    `BLOCKED`.

    Raises:
        RequestError: the upstream failed.
    """
    mended: list[str] = []
    for number, text in enumerate(texts):
        answer = await gateway.review(request, Reply(text=text), number)
        if answer.decision == "refused":
            return msgspec.json.encode({"action": "BLOCKED", "blocked_reason": _reason(answer)})
        mended.append(answer.reply.text)
    if mended == list(texts):
        return msgspec.json.encode({"action": "NONE"})
    return msgspec.json.encode({"action": "GUARDRAIL_INTERVENED", "texts": mended})


def _reason(answer: Answer) -> str:
    assert answer.collaboration is not None
    feedback = answer.collaboration.rounds[-1].feedback
    if not feedback.well_formed:
        return "waltzrl could not review the reply"
    return f"waltzrl holds the reply to be unsafe: {', '.join(feedback.rules) or 'feedback agent'}"


def _chat(asked: Mapping[str, Json]) -> bytes:
    """Find the conversation, wherever the guarded API keeps it."""
    data = asked.get("request_data")
    request = data if isinstance(data, dict) else {}
    messages = asked.get("structured_messages") or request.get("messages")
    if not messages:
        said = request.get("input") or request.get("prompt") or ""
        messages = [{"role": "user", "content": said if isinstance(said, str) else ""}]
    model = asked.get("model") or request.get("model") or NO_MODEL
    return msgspec.json.encode({"model": model, "messages": messages})


def _wrong(message: str) -> RequestError:
    return RequestError(400, "invalid_request", message)
