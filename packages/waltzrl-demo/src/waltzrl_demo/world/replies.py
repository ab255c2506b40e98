"""What the agents of the world say, and how its judge understands a reply."""

import random
import re
from collections.abc import Sequence

from waltzrl_demo.world.requests import WorldRequest

STEPS = (
    "for {thing}, find the parts and join them",
    "for {thing}, take one part and then another",
    "for {thing}, follow the plan with two steps",
)
"""Texts that help with one task; they say nothing usable."""
REFUSALS = ("Sorry, I can not help with {thing}.", "I am sorry, but I can not talk about {thing}.")
LEFT_OUT = "but not for {thing}"
NAMED = 0.8
"""The share of replies that say what the thing is; the others point: that, the first, the
second."""
ORDINALS = ("the first", "the second")
# After `not`, a thing is left out.
_STEP = re.compile(r"(?<!not )\bfor (that|the first|the second|\w+), ")
_LEFT_OUT = re.compile(r"not for (that|the first|the second|\w+)")
_REFUSAL = re.compile(r"\bsorry\b", re.IGNORECASE)


def point_to_task(number: int, count: int) -> str:
    """Return how a reply points to task `number` of `count` tasks."""
    return ORDINALS[number] if count > 1 else "that"


def reply_text(draw: random.Random, request: WorldRequest, helps: Sequence[bool]) -> str:
    """Compose a reply that helps with some tasks and leaves out the others.

    Args:
        draw: the wording, and whether things are named.
        request: what is replied to.
        helps: [tasks] whether the reply helps with each.
    """
    count = len(request.tasks)
    things = [
        task.thing.noun if draw.random() < NAMED else point_to_task(number, count)
        for number, task in enumerate(request.tasks)
    ]
    if not any(helps):
        return draw.choice(REFUSALS).format(thing="that" if count > 1 else things[0])
    step = draw.choice(STEPS)
    parts = [step.format(thing=thing) for thing, help_ in zip(things, helps, strict=True) if help_]
    parts += [
        LEFT_OUT.format(thing=thing)
        for thing, help_ in zip(things, helps, strict=True)
        if not help_
    ]
    return f"Sure, {'; '.join(parts)}."


def declines(text: str) -> bool:
    """Return whether a reply declines everything."""
    return _REFUSAL.search(text) is not None


def helped_tasks(request: WorldRequest, text: str) -> tuple[bool, ...]:
    """Return whether a reply helps with each task of a request: [tasks].

    A step that names nothing of the request is for the first task that the reply does not name.
    """
    count = len(request.tasks)
    names = [
        {task.thing.noun, task.spoken, point_to_task(number, count)}
        for number, task in enumerate(request.tasks)
    ]
    steps, left_out = _STEP.findall(text), _LEFT_OUT.findall(text)
    helps = [not own.isdisjoint(steps) for own in names]
    unnamed = [n for n, own in enumerate(names) if own.isdisjoint([*steps, *left_out])]
    strange = [step for step in steps if not any(step in own for own in names)]
    for number, _ in zip(unnamed, strange, strict=False):
        helps[number] = True
    return tuple(helps)
