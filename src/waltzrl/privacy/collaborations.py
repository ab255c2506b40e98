"""Personal data taken out of a whole collaboration, before it is kept."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

from waltzrl.records import Collaboration, Feedback, Reply, Round

Scrub: TypeAlias = Callable[[str], str]

ESCAPE = re.compile(r"\\+(?:u([0-9a-fA-F]{4})|[nrt])")
"""Of JSON, also of JSON within JSON: a character by its number, or white space."""


def scrub_collaboration(said: Collaboration, scrub: Scrub) -> Collaboration:
    """Return what was said with every text scrubbed; tokens, which spell the texts, are dropped.

    Names stay: of the prompt, its category and source, of tools and of rules.
    """
    prompt = said.prompt
    return Collaboration(
        prompt=replace(
            prompt,
            messages=tuple(
                replace(message, content=scrub_text(message.content, scrub))
                for message in prompt.messages
            ),
            answer=None if prompt.answer is None else scrub_text(prompt.answer, scrub),
        ),
        draft=_reply(said.draft, scrub),
        rounds=tuple(
            Round(
                feedback=_feedback(turn.feedback, scrub),
                revision=None if turn.revision is None else _reply(turn.revision, scrub),
            )
            for turn in said.rounds
        ),
    )


def scrub_text(text: str, scrub: Scrub) -> str:
    r"""Return the text scrubbed, and also what its escapes spell, however deep.

    Arguments of tools and reviews are JSON, whole or cut short, and `ada\u0040example.com` is an
    address there. Only where an escape hides something are escapes resolved.
    """
    scrubbed = scrub(text)
    spelt = ESCAPE.sub(_character, scrubbed)
    if spelt == scrubbed:
        return scrubbed
    uncovered = scrub(spelt)
    return scrubbed if uncovered == spelt else uncovered


def _character(escape: re.Match[str]) -> str:
    return chr(int(escape[1], 16)) if escape[1] else " "


def _feedback(feedback: Feedback, scrub: Scrub) -> Feedback:
    return replace(
        feedback,
        text=scrub_text(feedback.text, scrub),
        reasoning=scrub_text(feedback.reasoning, scrub),
        reply=None if feedback.reply is None else _reply(feedback.reply, scrub),
    )


def _reply(reply: Reply, scrub: Scrub) -> Reply:
    calls = tuple(
        replace(call, arguments=scrub_text(call.arguments, scrub)) for call in reply.calls
    )
    return replace(reply, text=scrub_text(reply.text, scrub), calls=calls, tokens=None)
