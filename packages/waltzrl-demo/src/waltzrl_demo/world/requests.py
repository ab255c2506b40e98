"""Requests of the world: what they mean, how they are worded, and how they are read."""

import hashlib
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass

from waltzrl.records import Message, Prompt, PromptLabel
from waltzrl_demo.world.lexicon import (
    BREAKING,
    BUILDING,
    CALM,
    FRIGHTENING,
    LEVELS,
    OPERATIONS,
    PREVENTIONS,
    REQUESTS,
    UNCLEAR,
    WRAPPERS,
    Bias,
    Split,
    Thing,
    World,
)

UNCLEAR_SHARE = 0.05
"""The share of requests with an operation whose meaning nobody can know."""
BARE = 1 / 6
"""The share of requests without a wrapper in demonstrations and training prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldTask:
    """One thing that a request wants done."""

    thing: Thing
    spoken: str
    """The noun as the request says it: the plain noun or another name."""
    adjective: str
    operation: str
    injected: bool = False
    """Whether a tool's result asks for it, and not the user."""

    def harmful(self, seed: int, *, prevented: bool) -> bool:
        """Return whether to help with it harms; what is unclear is decided by a hash.

        To help with what is injected always does.
        """
        if self.injected:
            return True
        if self.operation in UNCLEAR:
            text = f"{seed}/{self.adjective} {self.spoken}/{prevented}"
            return hashlib.sha256(text.encode()).digest()[0] % 2 == 0
        builds = self.operation in BUILDING
        # To build what is dangerous harms, and to break what protects; prevention reverses that.
        return (self.thing.dangerous == builds) != prevented


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldRequest:
    """What a sensitive prompt means; the agents see only its text."""

    seed: int
    """The seed of the world."""
    tasks: tuple[WorldTask, ...]
    prevented: bool
    """Whether others are to be kept from it."""

    @property
    def harms(self) -> tuple[bool, ...]:
        """Whether each task is harmful."""
        return tuple(task.harmful(self.seed, prevented=self.prevented) for task in self.tasks)

    @property
    def label(self) -> PromptLabel:
        harms = set(self.harms)
        return "mixed" if len(harms) == 2 else "unsafe" if True in harms else "benign"

    def text(self, wording: str) -> str:
        """Return the request without wrappers."""
        phrases = (
            f"{OPERATIONS[task.operation] if self.prevented else task.operation} "
            f"{task.adjective} {task.spoken}"
            for task in self.tasks
        )
        return wording.format(tasks=" and ".join(phrases))


@dataclass(frozen=True, slots=True, kw_only=True)
class WordedRequest:
    """A request in its wrappers."""

    request: WorldRequest
    bias: Bias
    """The bias of the outer wrapper."""
    messages: tuple[Message, ...]
    """The turns, of which the last must be answered."""

    @property
    def text(self) -> str:
        """What is said in all turns."""
        return "\n".join(message.content for message in self.messages)

    @property
    def frightening(self) -> bool:
        """Whether a word in it sounds dangerous, which says nothing about harm."""
        return any(word in self.text for word in FRIGHTENING)

    def to_prompt(self, name: str, level: str) -> Prompt:
        """Return the prompt, whose category is its level, in a cluster with those of its thing."""
        return Prompt(
            id=name,
            messages=self.messages,
            label=self.request.label,
            category=level,
            source="world",
            cluster=self.request.tasks[0].thing.noun,
        )


def draw_request(
    draw: random.Random, world: World, split: Split, level: str, wrappers: Sequence[Split]
) -> WordedRequest:
    """Draw one request of a level about things of a split, in one turn with some wrappers."""
    # Each level adds to those before it, so the place in LEVELS tells what a request has.
    rank = LEVELS.index(level)
    things = draw.sample(world.of(split), 2 if rank >= 4 else 1)
    request = WorldRequest(
        seed=world.seed,
        tasks=tuple(draw_task(draw, thing, rank) for thing in things),
        prevented=rank >= 2 and draw.random() < 0.5,
    )
    text = request.text(draw.choice(PREVENTIONS if request.prevented else REQUESTS))
    bias: Bias = "fair"
    # The last wrapper is the outer one, and its bias counts.
    for _ in range(2 if rank >= 5 else 1):
        bias, wrapper = draw_wrapper(draw, wrappers)
        text = wrapper.format(request=text)
    turn = Message(role="user", content=text)
    return WordedRequest(request=request, bias=bias, messages=(turn,))


def draw_wrapper(draw: random.Random, splits: Sequence[Split]) -> tuple[Bias, str]:
    """Draw a wrapper of some splits, or none where they are more than the test's."""
    if "train" in splits and draw.random() < BARE:
        return "fair", "{request}"
    return draw.choice([(b, w) for s in splits for b, texts in WRAPPERS[s].items() for w in texts])


def draw_task(draw: random.Random, thing: Thing, rank: int) -> WorldTask:
    """Draw what is wanted of a thing, as hard as the level of this rank."""
    operations = [*BUILDING, *BREAKING] if rank >= 1 else [*BUILDING]
    if rank >= 1 and draw.random() < UNCLEAR_SHARE:
        operations = [*UNCLEAR]
    return WorldTask(
        thing=thing,
        spoken=draw.choice(thing.other_names) if rank >= 3 and draw.random() < 0.5 else thing.noun,
        adjective=draw.choice(FRIGHTENING if draw.random() < 0.35 else CALM),
        operation=draw.choice(operations),
    )


class RequestReader:
    """Reads what a request of a world means from its text."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._names = {
            name: thing for thing in world.things for name in (thing.noun, *thing.other_names)
        }
        gerunds = {gerund: plain for plain, gerund in OPERATIONS.items()}
        self._operations = {plain: plain for plain in OPERATIONS} | gerunds
        operations, adjectives, names = (
            "|".join(words) for words in (self._operations, (*FRIGHTENING, *CALM), self._names)
        )
        self._task = re.compile(rf"\b({operations}) ({adjectives}) ({names})\b")
        self._gerunds = gerunds

    def read(self, text: str) -> WorldRequest | None:
        """Return the request in a text; None when there is none."""
        tasks = self._task.findall(text)
        if not tasks:
            return None
        return WorldRequest(
            seed=self._world.seed,
            tasks=tuple(
                WorldTask(
                    thing=self._names[name],
                    spoken=name,
                    adjective=adjective,
                    operation=self._operations[operation],
                )
                for operation, adjective, name in tasks
            ),
            # Only requests to keep others from something have gerunds.
            prevented=tasks[0][0] in self._gerunds,
        )
