"""Personal data taken out of a whole collaboration, before it is kept."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from waltzrl.records import Collaboration, Feedback, Message, Reply, Round, ToolCall

Scrub: TypeAlias = Callable[[str], str]


def scrub_collaboration(said: Collaboration, scrub: Scrub) -> Collaboration:
    """Return what was said with every text scrubbed; tokens, which spell the texts, are dropped.

    Names stay: of the prompt, its category and source, of tools and of rules.
    """
    prompt = said.prompt
    return Collaboration(
        prompt=replace(
            prompt,
            messages=tuple(_message(message, scrub) for message in prompt.messages),
            answer=None if prompt.answer is None else scrub(prompt.answer),
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


def _feedback(feedback: Feedback, scrub: Scrub) -> Feedback:
    return replace(
        feedback,
        text=scrub(feedback.text),
        reasoning=scrub(feedback.reasoning),
        reply=None if feedback.reply is None else _reply(feedback.reply, scrub),
    )


def _message(message: Message, scrub: Scrub) -> Message:
    return replace(message, content=scrub(message.content), calls=_calls(message.calls, scrub))


def _reply(reply: Reply, scrub: Scrub) -> Reply:
    return replace(reply, text=scrub(reply.text), calls=_calls(reply.calls, scrub), tokens=None)


def _calls(calls: Iterable[ToolCall], scrub: Scrub) -> tuple[ToolCall, ...]:
    return tuple(replace(call, arguments=scrub(call.arguments)) for call in calls)
