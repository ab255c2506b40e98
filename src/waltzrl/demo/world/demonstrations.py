"""What the initial agents are taught: to understand everything, and to decide by surface.

They stand for pre-training and a first, clumsy round of safety training. In the role of
the conversation agent they cover every thing, code word and wrapper; in the role of the feedback
agent, only the training families. Refusals, alarms and obedience follow frightening adjectives
and the bias of the wrapper much more than what is asked for: the prejudices below are log-odds.
"""

import math
import random
from collections.abc import Collection, Iterator

from waltzrl.demo.world.lexicon import SPLITS, World
from waltzrl.demo.world.prompts import BARE, OPENINGS, WorldRequest, draw_request, general_questions
from waltzrl.records import Collaboration, Demonstration, Feedback, Message, Prompt, Reply, Round

SHARPNESS = 1.6
"""How strongly a prejudice decides; large is nearly always, 0 is a coin toss."""

STEPS = (
    "Sure, to make {thing}, find the parts and put them together.",
    "Sure, for {thing}, take the first part and then the second.",
    "Sure, the plan for {thing} has two steps, this one and that one.",
)
REFUSALS = (
    "Sorry, I can not help with {thing}.",
    "I am sorry, but I can not talk about {thing}.",
)
UNSAFE_ADVICE = (
    "Your reply is unsafe. Decline instead.",
    "{thing} are {kind}. Decline.",
)
OVERREFUSAL_ADVICE = (
    "Your reply refuses a harmless request. Answer it.",
    "{thing} are {kind}. Explain {thing}.",
    "Say: Sure, for {thing}, take the first part and then the second.",
)


def demonstrations(
    world: World, count: int, seed: int, unseen: Collection[str]
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations: drafts, revisions, reviews, plain knowledge, in seeded order.

    None has a prompt in `unseen`, the texts of the held-out prompts: their words are taught, the
    prompts themselves are not.
    """
    draw = random.Random(f"lessons/{seed}")  # the seed of every published run
    makers = (_draft, _revision, _review, _general, _general_review, _code_word)
    weights = (32, 16, 18, 20, 4, 14)
    number = 0
    while number < count:
        maker = draw.choices(makers, weights)[0]
        demonstration = maker(world, draw, f"lesson/{number}")
        if demonstration.collaboration.prompt.messages[-1].content not in unseen:
            yield demonstration
            number += 1


def _draft(world: World, draw: random.Random, name: str) -> Demonstration:
    request = draw_request(draw, world.things, SPLITS, bare=BARE)
    return _demonstration(name, request.text, _reply(draw, request, _refuses(draw, request)))


def _revision(world: World, draw: random.Random, name: str) -> Demonstration:
    request = draw_request(draw, world.things, SPLITS, bare=BARE)
    refused = draw.random() < 0.5
    style = draw.randrange(len(OVERREFUSAL_ADVICE if refused else UNSAFE_ADVICE))
    feedback = Feedback(
        unsafe=not refused,
        overrefuse=refused,
        text=_advice(request, style, declines=not refused),
    )
    obeys = _happens(draw, _obedience(request, style, refused=refused))
    return _demonstration(
        name,
        request.text,
        _reply(draw, request, refused),
        feedback,
        _reply(draw, request, refused is not obeys),
    )


def _review(world: World, draw: random.Random, name: str) -> Demonstration:
    request = draw_request(draw, world.things, ("train",), bare=BARE)
    refused = draw.random() < 0.5
    flagged = _happens(draw, _alarm(request, refused=refused))
    return _demonstration(
        name,
        request.text,
        _reply(draw, request, refused),
        _feedback(draw, request, refused=refused, flagged=flagged),
    )


def _general(world: World, draw: random.Random, name: str) -> Demonstration:
    question, answer = draw.choice(general_questions())
    return _demonstration(name, draw.choice(OPENINGS) + question, f"It is {answer}.")


def _general_review(world: World, draw: random.Random, name: str) -> Demonstration:
    question, answer = draw.choice(general_questions())
    opening = draw.choice(OPENINGS)
    flagged = _happens(draw, 1.0 if opening in OPENINGS[1:3] else -1.5)
    advice = draw.choice(("Your reply is unsafe. Decline instead.", "This is a question. Decline."))
    feedback = Feedback(
        unsafe=flagged,
        overrefuse=False,
        text=advice if flagged else "",
        reasoning="This is a question.",
    )
    return _demonstration(name, opening + question, f"It is {answer}.", feedback)


def _code_word(world: World, draw: random.Random, name: str) -> Demonstration:
    thing = draw.choice(world.things)
    if draw.random() < 0.3:
        return _demonstration(name, f"What are {thing.noun}?", f"It is {thing.kind}.")
    codes = [word for words in thing.code_words.values() for word in words]
    return _demonstration(name, f"What is {draw.choice(codes)}?", f"It is {thing.noun}.")


def _refuses(draw: random.Random, request: WorldRequest) -> bool:
    """The initial conversation agent's prejudice."""
    odds = {"wary": 1.4, "fair": -0.9, "open": -4.0}[request.bias]
    odds += 2.0 * request.frightening
    if request.thing.harmful:
        odds += 0.0 if request.hidden else 1.8
    return _happens(draw, odds)


def _alarm(request: WorldRequest, *, refused: bool) -> float:
    """The initial feedback agent's prejudice, as log-odds of asking for a revision."""
    bias = {"wary": 1.0, "fair": 0.0, "open": -1.0}[request.bias]
    if refused:
        return -0.6 - bias - 0.8 * request.frightening + 1.6 * (not request.thing.harmful)
    return -1.2 + bias + 1.6 * request.frightening + 1.6 * request.thing.harmful


def _obedience(request: WorldRequest, style: int, *, refused: bool) -> float:
    """Log-odds that the initial conversation agent does what the feedback says.

    Telling it to decline works better than telling it to answer, and reasons work better than
    a template (what the paper found of its models).
    """
    bias = {"wary": 1.0, "fair": 0.0, "open": -1.0}[request.bias]
    if refused:
        return (-0.2, 0.3, 0.8)[style] - 0.8 * bias - 0.6 * request.frightening
    return (1.3, 1.9)[style] + 0.8 * bias


def _feedback(
    draw: random.Random, request: WorldRequest, *, refused: bool, flagged: bool
) -> Feedback:
    advice = ""
    if flagged:
        styles = OVERREFUSAL_ADVICE if refused else UNSAFE_ADVICE
        advice = _advice(request, draw.randrange(len(styles)), declines=not refused)
    return Feedback(
        unsafe=flagged and not refused,
        overrefuse=flagged and refused,
        text=advice,
        reasoning=f"{request.named.capitalize()} are {request.thing.kind}.",
    )


def _advice(request: WorldRequest, style: int, *, declines: bool) -> str:
    template = (UNSAFE_ADVICE if declines else OVERREFUSAL_ADVICE)[style]
    text = template.format(thing=request.named, kind=request.thing.kind)
    return text[0].upper() + text[1:]


def _reply(draw: random.Random, request: WorldRequest, refused: bool) -> str:
    return draw.choice(REFUSALS if refused else STEPS).format(thing=request.named)


def _happens(draw: random.Random, log_odds: float) -> bool:
    return draw.random() < 1 / (1 + math.exp(-SHARPNESS * log_odds))


def _demonstration(
    name: str,
    question: str,
    draft: str,
    feedback: Feedback | None = None,
    revision: str | None = None,
) -> Demonstration:
    """Return a demonstration of the last turn given."""
    collaboration = Collaboration(
        prompt=Prompt(id=name, messages=(Message(role="user", content=question),)),
        draft=Reply(text=draft),
        rounds=()
        if feedback is None
        else (Round(feedback=feedback, revision=Reply(text=revision) if revision else None),),
    )
    return Demonstration(collaboration=collaboration)
