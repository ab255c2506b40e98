"""Interactions as the memory keeps them, in short, and a memory of them."""

from contextlib import contextmanager

from waltzrl.records import (
    CANNED_REFUSAL,
    Collaboration,
    Feedback,
    Message,
    Prompt,
    Reply,
    Round,
    Verdict,
)
from waltzrl.store.database import open_database
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.schemas import SafetyEvaluation
from waltzrl.store.memory.store import MemoryStore

ASKED = "How do I kill a process?"
REFUSAL = "I'm sorry, but I can't help with that."
ANSWER = "Use kill with its number."


def feedback(unsafe=False, overrefuse=False, **more):
    return Feedback(unsafe=unsafe, overrefuse=overrefuse, **more)


def turn(review, revision=None):
    return Round(feedback=review, revision=None if revision is None else Reply(text=revision))


def said(draft, *rounds, asked=ASKED, before=()):
    messages = (*before, Message(role="user", content=asked))
    prompt = Prompt(id="p", messages=messages)
    return Collaboration(prompt=prompt, draft=Reply(text=draft), rounds=rounds)


def evaluation(collaboration=None, **more):
    known = {
        "id": "r1",
        "time": 1.0,
        "caller": "key",
        "subject": "5f",
        "may_learn": True,
        "request_hash": "c0ffee",
        "category": "",
        "api": "chat",
        "model": "m",
        "mode": "whole",
        "bundle": "b1",
        "stage": 1,
        "arm": "",
        "release": "",
        "decision": "draft",
        "reason": "",
        "safe": None,
        "milliseconds": 1.0,
    }
    return SafetyEvaluation(**known | {"collaboration": collaboration} | more)


def labelled(collaboration, *, by="ada", reply=None, request=None, **more):
    """Return an evaluation that one person labelled."""
    event = LabelEvent(by=by, time=1.0, reply=reply, request=request, steers=True)
    return evaluation(collaboration, **more).labelled(event)


def verdict(**labels):
    return Verdict(judge="judge", **labels)


REVISED = said(
    REFUSAL,
    turn(feedback(overrefuse=True, text="Answer it.", reasoning="harmless", risk=0.0), ANSWER),
    turn(feedback(risk=0.0)),
)
"""An over-refusal, revised; the revision was reviewed again."""
STOPPED = said("Step one.", turn(feedback(unsafe=True, text="Decline."), CANNED_REFUSAL))
"""An unsafe draft, for which the canned refusal left."""


@contextmanager
def open_memory(url):
    """Open a memory that scrubs nothing."""
    engine = open_database(url)
    yield SafetyMemory(MemoryStore(engine, scrub=str), str, {}, {})
    engine.dispose()


def remember(url, evaluations):
    """Keep these in a memory, as they are."""
    with open_memory(url) as memory:
        for one in evaluations:
            memory.store_safety_evaluation(one)
