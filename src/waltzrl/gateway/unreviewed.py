"""What a client gets for a reply that nobody reviewed."""

import math
from dataclasses import replace

from waltzrl.collaboration import Drafter, Reviewer
from waltzrl.errors import OverloadError, RequestError
from waltzrl.records import Collaboration, Feedback, Prompt, Round

UNREVIEWED = Feedback(unsafe=False, overrefuse=False, well_formed=False)
"""The feedback on a reply that nobody reviewed."""


def unreviewed_error(overload: OverloadError) -> RequestError:
    """Return the error for a reply that nobody could review in time."""
    seconds = max(1, math.ceil(overload.retry_after_seconds))
    return RequestError(
        503,
        "unreviewed",
        f"the reviewer had no time for the reply ({overload.reason}); try again in {seconds} s",
        retry_after_seconds=seconds,
    )


def unreviewable_error() -> RequestError:
    return RequestError(
        400,
        "invalid_request",
        "image: images of this key are reviewed, but the reviewer sees none; send text",
        param="image",
    )


async def sent_first(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Answer with the draft, which has been sent; a reviewer without time changes nothing."""
    draft = await drafter.draft(prompt)
    try:
        feedback = await reviewer.review(prompt, draft)
    except OverloadError as overload:
        feedback = replace(UNREVIEWED, failure=overload.reason)
    return Collaboration(prompt=prompt, draft=draft, rounds=(Round(feedback=feedback),))
