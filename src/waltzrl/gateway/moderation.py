"""`POST /v1/moderations`: the bundle's reviewer as a moderation model, in OpenAI's format."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import ChatRequest, GatewayRequest, Json
from waltzrl.gateway.gateway import Gateway, all_of
from waltzrl.gateway.reviews import NO_MODEL
from waltzrl.gateway.wire.fields import as_name, as_object, as_text, invalid_field, read_object
from waltzrl.records import OTHER_LANGUAGE, Feedback, Message, Prompt, Reply

MOST_INPUTS = 32
COMPLIANCE = "Certainly. Here is what you asked for."
"""The reply under which an input is reviewed as a request; it says nothing itself."""
NEUTRAL = "Please write a text."
"""The request under which an input is reviewed as a reply."""
OPENAI_NAMES: dict[str, tuple[str, ...]] = {
    "violence_harm": ("violence",),
    "weapons": ("illicit", "illicit/violent"),
    "hate_speech": ("hate",),
    "harassment": ("harassment",),
    "self_harm": ("self-harm",),
    "sexual_content": ("sexual",),
    "child_safety": ("sexual", "sexual/minors"),
}
"""Our categories in OpenAI's words; a narrower one of theirs implies the wider one."""
OTHERWISE = ("illicit",)
"""The names for our categories that OpenAI lacks, and for findings without a category."""
NAMES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
"""All categories of OpenAI's moderation, which a client expects."""


def read_moderation(raw: bytes, request_id: str) -> tuple[ChatRequest, list[str]]:
    """Read `{"input": "..." or ["...", ...] or [{"type": "text", "text": "..."}, ...]}`.

    Returns:
        A request with two parts for each input, which is reviewed as a request that was complied
        with and as a reply; and the reply of each part.

    Raises:
        RequestError: 400, naming the field.
    """
    body = read_object(raw)
    model = as_name(body["model"], "model") if body.get("model") else NO_MODEL
    parts, replies = [], list[str]()
    for text in _read_inputs(body.get("input")):
        for asked, reply in ((text, COMPLIANCE), (NEUTRAL, text)):
            message = Message(role="user", content=asked)
            prompt = Prompt(id=request_id, messages=(message,))
            parts.append(ChatRequest(api="moderations", prompt=prompt, body={}, model=model))
            replies.append(reply)
    return msgspec.structs.replace(parts[0], n=len(parts), parts=tuple(parts)), replies


async def moderate_replies(
    gateway: Gateway, request: GatewayRequest, replies: Sequence[str]
) -> bytes:
    """Review the parts of a request, and return one result for each two of them.

    Raises:
        RequestError: 503, the reviewer failed: no result may pass for approval.
    """
    answers = await all_of(
        gateway.review(request, Reply(text=reply), number) for number, reply in enumerate(replies)
    )
    feedback = [answer.collaboration.rounds[0].feedback for answer in answers]
    for place, one in enumerate(feedback):
        if one.failure.startswith(OTHER_LANGUAGE) and not one.well_formed:
            number = place // 2  # each input is reviewed twice
            raise RequestError(
                400, "invalid_request", f"input {number}: {one.reasoning}", param="input"
            )
    if not all(one.well_formed for one in feedback):
        raise RequestError(503, "unreviewed", "the reviewer could not review the input; try again")
    bundle = gateway.selector.assigned(request).bundle
    results = [
        _combine_reviews(both, bundle.categories)
        for both in zip(feedback[::2], feedback[1::2], strict=True)
    ]
    answer = {"id": f"modr-{request.chat.prompt.id}", "model": bundle.id, "results": results}
    return msgspec.json.encode(answer)


def _combine_reviews(both: Iterable[Feedback], category_of: Mapping[str, str]) -> dict[str, object]:
    """Return the result for one input: of each category the higher risk of the two reviews."""
    scores, flagged = dict.fromkeys(NAMES, 0.0), dict.fromkeys(NAMES, False)
    for feedback in both:
        risk = float(feedback.unsafe) if feedback.risk is None else feedback.risk
        named = {category_of.get(rule, "") for rule in feedback.rules} | {feedback.category}
        for category in (named - {""}) or {""}:
            for name in OPENAI_NAMES.get(category, OTHERWISE):
                scores[name] = max(scores[name], risk)
                flagged[name] |= feedback.unsafe
    return {
        "flagged": any(flagged.values()),
        "categories": flagged,
        "category_scores": scores,
        "category_applied_input_types": {
            name: ["text"] if score else [] for name, score in scores.items()
        },
    }


def _read_inputs(given: Json) -> list[str]:
    """Return the inputs; a list of content parts is one input.

    Raises:
        RequestError: one is no text, or there are too many.
    """
    if isinstance(given, str):
        return [as_text(given, "input")]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_INPUTS:
        raise invalid_field("input", given, f"a text, or a list of 1 to {MOST_INPUTS}")
    if isinstance(given[0], str):
        return [as_text(text, f"input[{index}]") for index, text in enumerate(given)]
    return [
        "\n".join(_read_input_part(part, f"input[{index}]") for index, part in enumerate(given))
    ]


def _read_input_part(part: Json, where: str) -> str:
    fields = as_object(part, where)
    if fields.get("type") != "text":
        raise invalid_field(f"{where}.type", fields.get("type"), "text; images are not reviewed")
    return as_text(fields.get("text"), f"{where}.text")
