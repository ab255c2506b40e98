"""What the conversation agent of `waltzrl demo coach` is taught: to use examples and advice.

Every demonstration deals its subjects other offices, so the weights cannot know any: an office
is named where the advice or an example of the same subject names it, and nowhere else.
"""

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise

from waltzrl.agents.coaching import with_examples
from waltzrl.records import (
    Collaboration,
    Demonstration,
    Message,
    Prompt,
    Reply,
    Round,
)
from waltzrl.store.memory.schemas import MOST_EXAMPLES, CoachingSession, request_hash
from waltzrl_demo.world.offices import LETTERS, STEPS, UNKNOWN, Register, Subject

WITH_EXAMPLES = 0.7
"""The share of demonstrations with examples in the prompt."""
OWN = 0.85
"""The share, among these, in which one example is about the same subject."""
SECOND = 0.8
"""The share of second revisions, which name the office that the advice names."""
SECOND_WITH_EXAMPLES = 0.2


def referral_demonstrations(
    subjects: Sequence[Subject], count: int, seed: int
) -> Iterator[Demonstration]:
    """Yield `count` revisions, without or with two examples in the prompt, in seeded order."""
    draw = random.Random(f"referrals/{seed}")
    offices = sorted({subject.office for subject in subjects})
    for number in range(count):
        dealt = [
            Subject(name=subject.name, office=office)
            for subject, office in zip(
                draw.sample(subjects, 1 + MOST_EXAMPLES),
                draw.sample(offices, 1 + MOST_EXAMPLES),
                strict=True,
            )
        ]
        yield _draw_referral(draw, dealt, f"referral/{number}")


def _draw_referral(draw: random.Random, subjects: Sequence[Subject], name: str) -> Demonstration:
    """Return a revision of a reply about the first subject; examples are about the others, too."""
    subject, *others = subjects
    shown = others if draw.random() < WITH_EXAMPLES else []
    knows = bool(shown) and draw.random() < OWN
    if knows:
        shown = [subject, *others[1:]]  # the best first, as from the memory
    prompt = Prompt(id=name, messages=(Message(role="user", content=_draw_letter(draw, subject)),))
    prompt = with_examples(prompt, [_make_session(draw, each) for each in shown])
    draft = subject.steps(draw.randrange(len(STEPS)))
    replies = [draft, subject.referral(None if knows else UNKNOWN)]
    if draw.random() < (SECOND_WITH_EXAMPLES if shown else SECOND):
        wrong = draw.choice((UNKNOWN, others[0].office))
        replies = [draft, subject.referral(wrong), subject.referral()]
    rounds = tuple(
        Round(feedback=Register.feedback(subject, reply), revision=Reply(text=revision))
        for reply, revision in pairwise(replies)
    )
    return Demonstration(
        collaboration=Collaboration(prompt=prompt, draft=Reply(text=draft), rounds=rounds)
    )


def _make_session(draw: random.Random, subject: Subject) -> CoachingSession:
    """Return what the memory would hold of a letter about a subject, coached to a right reply."""
    request, draft = _draw_letter(draw, subject), subject.steps(0)
    return CoachingSession(
        coaching_session_id=subject.name,
        timestamp=0.0,
        agent_id="",
        subject="",
        request_hash=request_hash(request),
        category="",
        task=request,
        initial_response=draft,
        safety_risk_score=1.0,
        feedback_provided=(Register.feedback(subject, draft).text,),
        refined_response=subject.referral(),
        improvement_score=1.0,
        outcome="safe",
    )


def _draw_letter(draw: random.Random, subject: Subject) -> str:
    return subject.letter(draw.randrange(len(LETTERS)))
