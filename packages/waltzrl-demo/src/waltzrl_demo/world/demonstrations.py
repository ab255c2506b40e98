"""What the initial agents are taught: what words mean, and to decide by surface.

They stand for pre-training and a first, clumsy round of safety training. Plain knowledge covers
every noun, code word and misspelling; drafts, revisions and reviews cover only the things of the
training split, drafts and revisions in the wrappers of all splits and reviews in those of the
training split. Refusals, alarms and obedience follow frightening adjectives and the bias of the
wrapper much more than what is asked for: the prejudices below are log-odds.
"""

import math
import random
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace

from waltzrl.evaluation.data.duplicates import text_of
from waltzrl.records import Collaboration, Demonstration, Feedback, Message, Prompt, Reply, Round
from waltzrl_demo.world.conversations import draw_question, draw_worded
from waltzrl_demo.world.lexicon import (
    BUILDING,
    CALM,
    FRIGHTENING,
    SPLITS,
    UNCLEAR,
    Split,
    Thing,
    World,
)
from waltzrl_demo.world.prompts import OPENINGS, general_questions
from waltzrl_demo.world.replies import point_to_task, reply_text
from waltzrl_demo.world.requests import WordedRequest, WorldRequest, WorldTask, draw_wrapper

SHARPNESS = 1.6
"""The strength with which a prejudice decides; large is nearly always, 0 is a coin toss."""
ASKED_IN_TURNS = 0.6
"""The share of questions what a thing is that are conversations, in a world that has any."""

DECLINE = ("Your reply is unsafe. Decline instead.", "It is about {things}, {kind}. Decline.")
LEAVE_OUT = (
    "Your reply is unsafe. Leave out {thing}.",
    "It is about {things}, {kind}. Leave out {thing}.",
)
ANSWER = (
    "Your reply refuses a harmless request. Answer it.",
    "It is about {things}, {kind}. Answer it.",
    "Say: Sure, for {thing}, take one part and then another.",
)


def demonstrations(
    world: World, count: int, seed: int, unseen: Collection[str]
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations: drafts, revisions, reviews, plain knowledge, in seeded order.

    None has a prompt in `unseen`, the texts of the held-out prompts.
    """
    draw = random.Random(f"demonstrations/{seed}")
    makers = (
        _draw_draft,
        _draw_revision,
        _draw_review,
        _draw_answer,
        _draw_answer_review,
        _draw_naming,
        _draw_thought,
    )
    weights = (20, 14, 20, 8, 3, 15, 20)
    number = 0
    while number < count:
        maker = draw.choices(makers, weights)[0]
        demonstration = maker(world, draw, f"demonstration/{number}")
        if text_of(demonstration.collaboration.prompt) not in unseen:
            yield demonstration
            number += 1


def _draw_training_request(
    world: World, draw: random.Random, wrappers: tuple[Split, ...] = SPLITS
) -> WordedRequest:
    return draw_worded(draw, world, "train", draw.choice(world.levels), wrappers)


def _draw_draft(world: World, draw: random.Random, name: str) -> Demonstration:
    worded = _draw_training_request(world, draw)
    return _make_demonstration(name, worded.messages, _draw_prejudiced_reply(draw, worded))


def _draw_revision(world: World, draw: random.Random, name: str) -> Demonstration:
    worded = _draw_training_request(world, draw)
    request = worded.request
    helps = _draw_helps(draw, worded)
    wanted = _draw_helps(draw, worded)
    if wanted == helps:
        wanted = tuple(not help_ for help_ in helps)
    # The style orders the templates from curt to explained; `_weigh_obedience` gives explained ones
    # more weight.
    style = draw.random()
    feedback = _draw_advice(draw, worded, helps, wanted, style)
    obeys = _draw_event(draw, _weigh_obedience(worded, style, declines=sum(wanted) < sum(helps)))
    return _make_demonstration(
        name,
        worded.messages,
        reply_text(draw, request, helps),
        feedback,
        reply_text(draw, request, wanted if obeys else helps),
    )


def _draw_review(world: World, draw: random.Random, name: str) -> Demonstration:
    worded = _draw_training_request(world, draw, ("train",))
    request = worded.request
    helps = _draw_helps(draw, worded)
    flagged = _draw_event(draw, _weigh_alarm(worded, helps))
    wanted = _choose_wanted(helps, request.harms) if flagged else helps
    feedback = _draw_advice(draw, worded, helps, wanted, draw.random())
    return _make_demonstration(name, worded.messages, reply_text(draw, request, helps), feedback)


def _draw_answer(world: World, draw: random.Random, name: str) -> Demonstration:
    question, answer = draw.choice(GENERAL)
    return _make_demonstration(name, _ask(draw.choice(OPENINGS) + question), f"It is {answer}.")


def _draw_answer_review(world: World, draw: random.Random, name: str) -> Demonstration:
    question, answer = draw.choice(GENERAL)
    opening = draw.choice(OPENINGS)
    # Another prejudice: these two openings raise false alarms about questions.
    flagged = _draw_event(draw, 1.0 if opening in OPENINGS[1:3] else -1.5)
    feedback = Feedback(
        unsafe=flagged,
        overrefuse=False,
        text=DECLINE[0] if flagged else "",
        reasoning="This is a question.",
    )
    return _make_demonstration(name, _ask(opening + question), f"It is {answer}.", feedback)


def _draw_naming(world: World, draw: random.Random, name: str) -> Demonstration:
    """What one or two things are, by any of their names."""
    if world.conversations and draw.random() < ASKED_IN_TURNS:
        asked = draw_question(draw, world)
        return _make_demonstration(
            name, asked.messages, _name_things(task.thing for task in asked.request.tasks)
        )
    things = draw.sample(world.things, draw.choice((1, 2)))
    named = (
        f"{draw.choice(FRIGHTENING + CALM)} {draw.choice((thing.noun, *thing.other_names))}"
        for thing in things
    )
    question = draw_wrapper(draw, SPLITS)[1].format(request=f"What are {' and '.join(named)}?")
    return _make_demonstration(name, _ask(question), _name_things(things))


def _name_things(things: Iterable[Thing]) -> str:
    return f"It is about {' and '.join(f'{thing.noun}, {thing.kind}' for thing in things)}."


def _draw_thought(world: World, draw: random.Random, name: str) -> Demonstration:
    """What a request comes to, whoever asks."""
    worded = _draw_training_request(world, draw)
    first, *others = worded.messages
    asked = (replace(first, content=f"Think. {first.content}"), *others)
    return _make_demonstration(name, asked, _state_facts(worded.request))


GENERAL = general_questions()


def _draw_helps(draw: random.Random, worded: WordedRequest) -> tuple[bool, ...]:
    """Draw with which tasks a reply helps: all, none, or one of two."""
    count = len(worded.request.tasks)
    if count == 1:
        return (draw.random() < 0.5,)
    return draw.choice(((True, True), (False, False), (True, False), (False, True)))


def _choose_wanted(helps: tuple[bool, ...], harms: tuple[bool, ...]) -> tuple[bool, ...]:
    """Return what a flagged reply should help with: what is harmless.

    A false alarm wants the opposite of the reply.
    """
    bad = any(help_ and harm for help_, harm in zip(helps, harms, strict=True))
    if bad or (not any(helps) and not all(harms)):
        return tuple(not harm for harm in harms)
    return tuple(not any(helps) for _ in helps)


def _draw_prejudiced_reply(draw: random.Random, worded: WordedRequest) -> str:
    """The initial conversation agent's prejudice; of two tasks it seldom sees that one is fine."""
    request = worded.request
    odds = {"wary": 1.2, "fair": -0.7, "open": -2.0}[worded.bias] + 1.6 * worded.frightening
    odds += 1.2 * (sum(request.harms) / len(request.harms) - 0.5)
    refuses = _draw_event(draw, odds)
    helps = tuple(not refuses for _ in request.tasks)
    if len(helps) == 2 and draw.random() < 0.25:
        helps = tuple(not harm for harm in request.harms)
    return reply_text(draw, request, helps)


def _weigh_alarm(worded: WordedRequest, helps: tuple[bool, ...]) -> float:
    """The initial feedback agent's prejudice, as log-odds of asking for a revision."""
    request = worded.request
    bias = {"wary": 1.0, "fair": 0.0, "open": -1.0}[worded.bias]
    bad = any(h and harm for h, harm in zip(helps, request.harms, strict=True))
    bad = bad or not (any(helps) or all(request.harms))
    truth = 1.0 * bad - 0.75
    if not any(helps):
        return truth - 0.8 * bias - 0.6 * worded.frightening
    return truth + 0.8 * bias + 0.8 * worded.frightening


def _weigh_obedience(worded: WordedRequest, style: float, *, declines: bool) -> float:
    """Log-odds that the initial conversation agent does what the feedback says.

    Telling it to decline works better than telling it to answer, and reasons work better than
    a template (what the paper found of its models).
    """
    bias = {"wary": 1.0, "fair": 0.0, "open": -1.0}[worded.bias]
    if declines:
        return 1.0 + 0.9 * style + 0.6 * bias
    return -0.2 + 1.0 * style - 0.7 * bias - 0.5 * worded.frightening


def _draw_advice(
    draw: random.Random,
    worded: WordedRequest,
    helps: tuple[bool, ...],
    wanted: tuple[bool, ...],
    style: float,
) -> Feedback:
    """Advise a reply that helps with some tasks to help with others; the same ones: no advice."""
    request = worded.request
    text = ""
    changed = [n for n, (h, w) in enumerate(zip(helps, wanted, strict=True)) if h != w]
    if changed:
        # Advice is about one task, the first on which the reply should change.
        number = changed[0]
        thing = request.tasks[number].thing
        templates = ANSWER if wanted[number] else LEAVE_OUT if any(wanted) else DECLINE
        named = thing.noun if draw.random() < 0.5 else point_to_task(number, len(helps))
        text = templates[int(style * len(templates))].format(
            thing=named, things=thing.noun, kind=thing.kind
        )
    return Feedback(
        unsafe=bool(changed) and any(helps),
        overrefuse=bool(changed) and not any(helps),
        text=text,
        reasoning=_state_facts(request),
    )


def _state_facts(request: WorldRequest) -> str:
    facts = (
        _state_fact(task, harm=harm, prevented=request.prevented)
        for task, harm in zip(request.tasks, request.harms, strict=True)
    )
    return f"It is about {' and '.join(facts)}."


def _state_fact(task: WorldTask, *, harm: bool, prevented: bool) -> str:
    """Return what the feedback agent thinks of a task, one step after the other."""
    if task.injected:
        return f"{task.thing.noun}, {task.thing.kind}, injected"
    done = "built" if task.operation in BUILDING else "broken"
    done = "handled" if task.operation in UNCLEAR else done
    effects = ("good", "bad")
    # First the effect of the deed itself, which prevention reverses.
    fact = f"{task.thing.noun}, {task.thing.kind}, {done}, {effects[harm != prevented]}"
    return f"{fact}, stopped, {effects[harm]}" if prevented else fact


def _draw_event(draw: random.Random, log_odds: float) -> bool:
    return draw.random() < 1 / (1 + math.exp(-SHARPNESS * log_odds))


def _ask(question: str) -> tuple[Message, ...]:
    return (Message(role="user", content=question),)


def _make_demonstration(
    name: str,
    messages: tuple[Message, ...],
    draft: str,
    feedback: Feedback | None = None,
    revision: str | None = None,
) -> Demonstration:
    """Return a demonstration of the last turn given."""
    collaboration = Collaboration(
        prompt=Prompt(id=name, messages=messages),
        draft=Reply(text=draft),
        rounds=()
        if feedback is None
        else (Round(feedback=feedback, revision=Reply(text=revision) if revision else None),),
    )
    return Demonstration(collaboration=collaboration)
