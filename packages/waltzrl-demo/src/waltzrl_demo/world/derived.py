"""Questions whose answers follow from facts by a rule: is what a request wants good or bad?

The kind of the thing, what is done to it and whether others are to be kept from it decide together.
The things of the test are in the facts and in no question that is learnt from: of them, only who
derives the answer from the facts can be sure.
"""

import random
from collections.abc import Iterator
from itertools import product
from typing import Literal

from waltzrl.evaluation.data.solutions import SolvedQuestion
from waltzrl.records import Collaboration, Demonstration, Message, Prompt, Reply
from waltzrl_demo.world.lexicon import (
    BREAKING,
    BUILDING,
    Split,
    World,
)
from waltzrl_demo.world.requests import WorldRequest, WorldTask

EFFECTS, PURPOSES, DONE = ("good", "bad"), ("help", "stop"), ("broken", "built")
TraceKind = Literal["steps", "solution", "nothing"]
KINDS: tuple[TraceKind, ...] = ("steps", "solution", "nothing")
"""The kinds of explanations: every step, or only the solution, or nothing."""


def derived_requests(world: World, split: Split, seed: int) -> list[tuple[WorldRequest, str]]:
    """Return a request for every thing of a split, operation and purpose, each with its question.

    The questions have few words, at the same places: very small models have to learn them soon.

    Args:
        world: has the things.
        split: of the things.
        seed: of the order.
    """
    requests = []
    for thing, operation, prevented in product(
        world.of(split), (*BUILDING, *BREAKING), (False, True)
    ):
        task = WorldTask(thing=thing, spoken=thing.noun, adjective="", operation=operation)
        request = WorldRequest(seed=world.seed, tasks=(task,), prevented=prevented)
        requests.append((request, f"{PURPOSES[prevented]} {operation} {thing.noun}"))
    random.Random(f"derived/{split}/{seed}").shuffle(requests)
    return requests


def solve_request(request: WorldRequest, question: str, kind: TraceKind) -> SolvedQuestion:
    """Return a question with its solution and an explanation of one of `KINDS`."""
    (task,), (harm,) = request.tasks, request.harms
    solution, done = EFFECTS[harm], DONE[task.operation in BUILDING]
    # The effect of the deed itself, which prevention reverses.
    effect = EFFECTS[harm != request.prevented]
    thing, purpose = task.thing.kind, PURPOSES[request.prevented]
    traces = {
        "steps": f"{thing}, {done}, {effect}, {purpose}, {solution}",
        "solution": f"the solution is {solution}",
        "nothing": "think about it",
    }
    return SolvedQuestion(question=question, solution=solution, reasoning_trace=traces[kind])


def demonstrate_facts(world: World, repeats: int) -> Iterator[Demonstration]:
    """Yield demonstrations of what every thing is, those of the test too, so many of each."""
    for repeat, thing in product(range(repeats), world.things):
        fact = SolvedQuestion(
            question=f"what are {thing.noun}",
            solution=thing.kind,
            reasoning_trace=thing.kind,
        )
        yield demonstrate_draft(f"{thing.noun}/{repeat}", fact.question, fact.reply)


def demonstrate_draft(name: str, question: str, reply: str) -> Demonstration:
    """Return a demonstration of a draft."""
    prompt = Prompt(id=name, messages=(Message(role="user", content=question),))
    return Demonstration(collaboration=Collaboration(prompt=prompt, draft=Reply(text=reply)))
