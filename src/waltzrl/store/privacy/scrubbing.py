"""Scrubs what is about to be stored: whole collaborations, and the records of a log."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from waltzrl.records import Collaboration, Feedback, Message, Reply, ToolCall

Scrub: TypeAlias = Callable[[str], str]
"""Returns a text without personal data, as `RedactionRules.scrub` does."""
LONGEST_MODEL_NAME = 200
"""Characters."""


def scrub_collaboration(collaboration: Collaboration, scrub: Scrub) -> Collaboration:
    """Return a collaboration with all texts scrubbed, and without tokens, which spell the texts.

    Identifiers stay: the prompt's id, category and source, and the names of tools and rules.
    """
    prompt = collaboration.prompt
    return replace(
        collaboration,
        prompt=replace(
            prompt,
            messages=tuple(_scrub_message(message, scrub) for message in prompt.messages),
            context=tuple(_scrub_message(message, scrub) for message in prompt.context),
            answer=None if prompt.answer is None else scrub(prompt.answer),
        ),
        draft=_scrub_reply(collaboration.draft, scrub),
        rounds=tuple(
            replace(
                turn,
                feedback=_scrub_feedback(turn.feedback, scrub),
                revision=None if turn.revision is None else _scrub_reply(turn.revision, scrub),
            )
            for turn in collaboration.rounds
        ),
    )


def _scrub_feedback(feedback: Feedback, scrub: Scrub) -> Feedback:
    return replace(
        feedback,
        text=scrub(feedback.text),
        reasoning=scrub(feedback.reasoning),
        reply=None if feedback.reply is None else _scrub_reply(feedback.reply, scrub),
    )


def _scrub_message(message: Message, scrub: Scrub) -> Message:
    return replace(
        message, content=scrub(message.content), calls=_scrub_calls(message.calls, scrub)
    )


def _scrub_reply(reply: Reply, scrub: Scrub) -> Reply:
    usage = reply.usage
    return replace(
        reply,
        text=scrub(reply.text),
        reasoning=scrub(reply.reasoning),
        calls=_scrub_calls(reply.calls, scrub),
        # Servers return the name of the model as the client wrote it.
        usage=None
        if usage is None
        else replace(usage, model=scrub(usage.model)[:LONGEST_MODEL_NAME]),
        tokens=None,
    )


def _scrub_calls(calls: Iterable[ToolCall], scrub: Scrub) -> tuple[ToolCall, ...]:
    return tuple(replace(call, arguments=scrub(call.arguments)) for call in calls)


class ScrubbingFilter(logging.Filter):
    """Scrubs the message, exception and stack of log records; add it to a handler.

    A filter on a logger sees only the records of that logger; one on a handler sees all that the
    handler writes.
    """

    def __init__(self, scrub: Scrub, formatter: logging.Formatter | None = None) -> None:
        """Scrub with `scrub`; exceptions are formatted by the handler's `formatter`."""
        super().__init__()
        self._scrub = scrub
        self._formatter = formatter or logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Scrub the record in place, and accept it."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError, LookupError):  # arguments that do not fit the format
            message = f"{record.msg} {record.args}"
        record.msg = self._scrub(message)
        record.args = None
        if record.exc_info:
            record.exc_text = self._formatter.formatException(record.exc_info)
            # A formatter that writes exceptions itself would write this one unscrubbed.
            record.exc_info = None
        if record.exc_text:
            record.exc_text = self._scrub(record.exc_text)
        if record.stack_info:
            record.stack_info = self._scrub(record.stack_info)
        return True
