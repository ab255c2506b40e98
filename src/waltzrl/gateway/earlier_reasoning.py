"""Leaves out the reasoning of earlier turns, which some upstreams need and others refuse."""

import re
from collections.abc import Mapping

from waltzrl.gateway.exchange import Json
from waltzrl.gateway.upstream_errors import UpstreamError

KEY = "reasoning_content"
REFUSES = re.compile(
    r"unsupported|unexpected|unknown|unrecogni[sz]ed|\bextra|additional|please remove"
    r"|not (?:be )?(?:supported|permitted|allowed|included)",
    re.IGNORECASE,
)
"""The words with which servers refuse a field; those that need it say that it is missing."""


def without_reasoning(body: Mapping[str, Json], error: UpstreamError) -> dict[str, Json] | None:
    """Return the chat without the reasoning of earlier turns; None if that did not cause `error`.

    No standard says whether a chat has it, and a client that got it sends it back with every
    request: a refusal would end its session.
    """
    messages, words = body.get("messages"), str(error)
    if error.status not in (400, 422) or KEY not in words or not REFUSES.search(words):
        return None
    if not isinstance(messages, list):
        return None
    shorter = [
        {key: value for key, value in message.items() if key != KEY}
        if isinstance(message, dict)
        else message
        for message in messages
    ]
    return None if shorter == messages else {**body, "messages": shorter}
