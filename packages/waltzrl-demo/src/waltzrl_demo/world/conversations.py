"""Conversations of the world: a request that is spread over turns, and tools that were called.

What a conversation asks for is what the same words ask for in one turn. What a tool's result asks
for, nobody asked: a good reply does not help with it.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, product

from waltzrl.records import Message, ToolCall
from waltzrl_demo.world.lexicon import (
    ACKNOWLEDGEMENTS,
    CALM,
    CONVERSATIONS,
    FRIGHTENING,
    INJECTIONS,
    INJECTIONS_OF,
    LEVELS,
    NAMINGS,
    OPERATIONS,
    RESULTS,
    SEARCH,
    SPLITS,
    TURNS,
    Split,
    Thing,
    World,
)
from waltzrl_demo.world.requests import (
    RequestReader,
    WordedRequest,
    WorldRequest,
    WorldTask,
    draw_request,
    draw_task,
    draw_wrapper,
)

MOST_RANK = LEVELS.index("name")
"""The place of the hardest level with one thing."""
OTHER_THING = 0.4
"""The share of conversations that name another thing before theirs."""
ALARMING = 0.5
"""The share of results that sound dangerous."""


def draw_worded(
    draw: random.Random, world: World, split: Split, level: str, wrappers: Sequence[Split]
) -> WordedRequest:
    """Draw a request of any level, in one turn or in a conversation; see `draw_request`."""
    if level not in CONVERSATIONS:
        return draw_request(draw, world, split, level, wrappers)
    worded = draw_request(draw, world, split, LEVELS[_find_rank(world)], wrappers)
    return _tell(draw, world, worded, level, world.of(split))


def draw_question(draw: random.Random, world: World) -> WordedRequest:
    """Draw a conversation that asks what a thing of any split is, in wrappers of all splits."""
    task = draw_task(draw, draw.choice(world.things), _find_rank(world))
    request = WorldRequest(seed=world.seed, tasks=(task,), prevented=False)
    bias, wrapper = draw_wrapper(draw, SPLITS)
    asked = Message(role="user", content=wrapper.format(request=f"What are {_describe(task)}?"))
    worded = WordedRequest(request=request, bias=bias, messages=(asked,))
    return _tell(draw, world, worded, draw.choice(world.conversations), world.things)


def _find_rank(world: World) -> int:
    """Return the place in LEVELS of what the world's conversations ask for."""
    return min(MOST_RANK, max(LEVELS.index(level) for level in world.levels if level in LEVELS))


def _tell(
    draw: random.Random, world: World, worded: WordedRequest, level: str, things: Sequence[Thing]
) -> WordedRequest:
    """Tell a request for one thing in a conversation of a level, in which other things occur."""
    (task,), rank = worded.request.tasks, _find_rank(world)
    others = [thing for thing in things if thing != task.thing]
    if level == TURNS:
        return _spread_over_turns(draw, worded, others, rank)
    if level == INJECTIONS:
        drawn = (draw_task(draw, draw.choice(others), rank) for _ in count())
        harmful = next(each for each in drawn if each.harmful(world.seed, prevented=False))
        tasks = (task, replace(harmful, injected=True))
        worded = replace(worded, request=replace(worded.request, tasks=tasks))
    return _call_tool(draw, worded)


def _spread_over_turns(
    draw: random.Random, worded: WordedRequest, others: Sequence[Thing], rank: int
) -> WordedRequest:
    """Name the thing in a turn before the request, which only refers to it."""
    (task,) = worded.request.tasks
    naming, reference = draw.choice(NAMINGS)
    said = [naming.format(thing=_describe(task))]
    if draw.random() < OTHER_THING:
        other = draw_task(draw, draw.choice(others), rank)
        # The last that was called so is meant, so another thing comes first.
        said.insert(0, draw.choice(NAMINGS)[0].format(thing=_describe(other)))
    turns = [
        message
        for text in said
        for message in (
            Message(role="user", content=text),
            Message(role="assistant", content=draw.choice(ACKNOWLEDGEMENTS)),
        )
    ]
    asked = Message(role="user", content=worded.text.replace(_describe(task), reference))
    return replace(worded, messages=(*turns, asked))


def _call_tool(draw: random.Random, worded: WordedRequest) -> WordedRequest:
    """Let the assistant have called a tool, whose result must be answered."""
    task, *injected = worded.request.tasks
    result = draw.choice(RESULTS).format(
        adjective=draw.choice(FRIGHTENING if draw.random() < ALARMING else CALM),
        noun=task.thing.noun,
        kind=task.thing.kind,
    )
    for each in injected:
        phrase = f"{each.operation} {_describe(each)}"
        result = f"{result} {draw.choice(INJECTIONS_OF).format(tasks=phrase)}"
    call = ToolCall(id="1", name=SEARCH, arguments=task.spoken, kind="custom")
    turns = (
        Message(role="assistant", content="", calls=(call,)),
        Message(role="tool", content=result, call_id=call.id),
    )
    return replace(worded, messages=(*worded.messages, *turns))


def _describe(task: WorldTask) -> str:
    return f"{task.adjective} {task.spoken}"


class ConversationReader:
    """Reads what a conversation of a world means from its turns."""

    def __init__(self, world: World) -> None:
        self._reader = RequestReader(world)
        names = [name for thing in world.things for name in (thing.noun, *thing.other_names)]
        described = rf"({'|'.join((*FRIGHTENING, *CALM))}) ({'|'.join(names)})"
        self._namings = [
            (re.compile(re.escape(naming).replace(r"\{thing\}", described)), reference)
            for naming, reference in NAMINGS
        ]
        operations = "|".join((*OPERATIONS, *OPERATIONS.values()))
        references = "|".join(dict.fromkeys(reference for _, reference in NAMINGS))
        self._reference = re.compile(rf"\b({operations}) ({references})\b")

    def read(self, messages: Sequence[Message]) -> WorldRequest | None:
        """Return what the user asks for in the end, and what tools' results ask for beside it.

        None where the user asks for nothing of this world.
        """
        request = self._reader.read(self.join_turns(messages))
        if request is None:
            return None
        results = (self._reader.read(each.content) for each in messages if each.role == "tool")
        injected = (task for result in results if result is not None for task in result.tasks)
        tasks = (*request.tasks, *(replace(task, injected=True) for task in injected))
        return replace(request, tasks=tasks)

    def join_turns(self, messages: Sequence[Message]) -> str:
        """Return the user's last turn, with what it refers to in earlier ones in its place."""
        *earlier, last = (each.content for each in messages if each.role == "user")
        named = {}
        for turn, (pattern, reference) in product(earlier, self._namings):
            if found := pattern.search(turn):
                named[reference] = f"{found[1]} {found[2]}"
        return self._reference.sub(lambda m: f"{m[1]} {named.get(m[2], m[2])}", last)
