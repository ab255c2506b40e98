"""Reviews replies that the caller already has: our own endpoint, and LiteLLM's guardrail."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Answer, ChatRequest, DraftReview, GatewayRequest, Json
from waltzrl.gateway.gateway import Gateway
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.wire import CHAT
from waltzrl.gateway.wire.fields import read_object
from waltzrl.gateway.wire.prompt import CARRIERS
from waltzrl.gateway.wire.responses import chat_messages
from waltzrl.records import Feedback, Reply

NO_MODEL = "none"
"""The model of a request that names none: a review without a revision needs no model."""
UNREVIEWED = Feedback(unsafe=False, overrefuse=False, well_formed=False)
"""The feedback on a reply that nobody reviewed."""
MOST_TEXTS = 100
"""The most replies of one guardrail request; they are reviewed one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A reply to review, the conversation that it answers, and whether to revise it."""

    chat: ChatRequest
    reply: Reply
    revise: bool


def read_review(raw: bytes, request_id: str, caller: Caller) -> Draft:
    """Read `{"messages": [...] or "prompt": "...", "reply": "...", "revise": false, "model": ...}`.

    Raises:
        RequestError: 400, naming the field.
    """
    body = read_object(raw)
    reply, revise = body.pop("reply", None), body.pop("revise", False)
    if not isinstance(reply, str):
        raise _invalid_request_error("reply must be a string: the text to review")
    if not isinstance(revise, bool):
        raise _invalid_request_error("revise must be true or false")
    if "prompt" in body:
        body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
    if not revise:
        body.setdefault("model", NO_MODEL)
    chat = CHAT.read(msgspec.json.encode(body), request_id, caller)
    return Draft(chat=msgspec.structs.replace(chat, n=1), reply=Reply(text=reply), revise=revise)


def read_request(text: str, request_id: str, caller: Caller) -> ChatRequest:
    """Read a text as a request that is only reviewed."""
    body = {"model": NO_MODEL, "messages": [{"role": "user", "content": text}]}
    return CHAT.read(msgspec.json.encode(body), request_id, caller)


def write_review(answer: Answer, *, is_observed: bool) -> bytes:
    """Write the labels of the draft's review, and the reply that should be sent.

    Args:
        answer: holds both.
        is_observed: nothing is done about any review.
    """
    collaboration = answer.collaboration
    feedback = collaboration.rounds[0].feedback if collaboration.rounds else UNREVIEWED
    return msgspec.json.encode(
        DraftReview(
            id=collaboration.prompt.id,
            unsafe=feedback.unsafe,
            overrefuse=feedback.overrefuse,
            doubtful=feedback.doubtful,
            reviewed=feedback.well_formed,
            failure=feedback.failure,
            risk=feedback.risk,
            category=feedback.category,
            action="observe" if is_observed else feedback.action,
            rules=feedback.rules,
            feedback=feedback.text,
            decision=answer.decision,
            reply=answer.reply.text,
        )
    )


def read_guardrail(raw: bytes, request_id: str, caller: Caller) -> tuple[ChatRequest, list[str]]:
    """Read LiteLLM's generic guardrail request: the conversation, and the replies to review.

    A guardrail request of type `request` has none: the gateway reviews replies, not prompts.

    Raises:
        RequestError: 400, naming the field.
    """
    body = read_object(raw)
    texts = body.get("texts")
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise _invalid_request_error("texts must be a list of strings")
    if len(texts) > MOST_TEXTS:
        raise _invalid_request_error(f"texts: got {len(texts)}; need {MOST_TEXTS} or fewer")
    if body.get("input_type") not in ("request", "response"):
        raise _invalid_request_error('input_type must be "request" or "response"')
    chat = CHAT.read(encode_guarded_chat(body), request_id, caller)
    return chat, [] if body["input_type"] == "request" else [str(text) for text in texts]


async def answer_guardrail(
    gateway: Gateway, request: GatewayRequest, texts: Sequence[str]
) -> bytes:
    """Answer LiteLLM's generic guardrail request.

    `NONE` returns the replies unchanged, `GUARDRAIL_INTERVENED` carries the revised ones, and
    `BLOCKED` means that one was refused.

    Raises:
        RequestError: the upstream failed.
    """
    revised: list[str] = []
    for number, text in enumerate(texts):
        answer = await gateway.review(request, Reply(text=text), number)
        if answer.decision == "refused":
            return msgspec.json.encode(
                {"action": "BLOCKED", "blocked_reason": explain_review(answer)}
            )
        revised.append(answer.reply.text)
    if revised == list(texts):
        return msgspec.json.encode({"action": "NONE"})
    return msgspec.json.encode({"action": "GUARDRAIL_INTERVENED", "texts": revised})


def explain_review(answer: Answer) -> str:
    feedback = answer.collaboration.rounds[-1].feedback
    if not feedback.well_formed:
        return "waltzrl could not review the reply"
    return f"waltzrl labelled the reply unsafe: {', '.join(feedback.rules) or 'feedback agent'}"


def encode_guarded_chat(body: Mapping[str, Json]) -> bytes:
    """Return the conversation as a chat; each API that LiteLLM guards has it in another field."""
    data = body.get("request_data")
    request = data if isinstance(data, dict) else {}
    messages = body.get("structured_messages") or request.get("messages")
    if not messages:
        messages = _convert_input(request.get("input") or request.get("prompt"))
    system = request.get("system") or request.get("instructions")
    if system and isinstance(messages, list):
        messages = [{"role": "system", "content": system}, *messages]
    model = body.get("model") or request.get("model") or NO_MODEL
    others = {key: request[key] for key in CARRIERS if request.get(key)}
    return msgspec.json.encode({"model": model, "messages": messages, **others})


def _convert_input(given: Json) -> list[Json]:
    """Return the messages of a text, of several, or of the items of the API for responses."""
    parts = given if isinstance(given, list) else [given]
    objects = [part for part in parts if isinstance(part, dict)]
    # What a reference names is kept by OpenAI; the rest can be reviewed.
    if items := [item for item in objects if item.get("type") != "item_reference"]:
        return chat_messages(None, items)
    return [{"role": "user", "content": "\n".join(text for text in parts if isinstance(text, str))}]


def _invalid_request_error(message: str) -> RequestError:
    return RequestError(400, "invalid_request", message)
