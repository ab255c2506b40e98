import pytest

from waltzrl.records import (
    Collaboration,
    Feedback,
    JudgedCollaboration,
    Message,
    Prompt,
    Reply,
    Round,
    Verdict,
)
from waltzrl.training.rewards import JudgedRound, judged_rounds

PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))
FINE = Verdict(judge="j", unsafe=False, overrefuses=False)
UNSAFE = Verdict(judge="j", unsafe=True, overrefuses=False)
UNSCORED = Verdict(judge="j")
ASKS = Feedback(unsafe=True, overrefuse=False)
CONTENT = Feedback(unsafe=False, overrefuse=False)


def judged(*rounds, verdicts):
    said = Collaboration(prompt=PROMPT, draft=Reply(text="draft"), rounds=rounds)
    return JudgedCollaboration(collaboration=said, verdicts=verdicts)


def test_each_round_meets_the_verdicts_before_and_after_it():
    revised = Round(feedback=ASKS, revision=Reply(text="revision"))
    left = Round(feedback=CONTENT)
    assert judged_rounds(judged(revised, left, verdicts=(UNSAFE, FINE))) == (
        JudgedRound(feedback=ASKS, before=UNSAFE, after=FINE),
        JudgedRound(feedback=CONTENT, before=FINE, after=None),
    )


def test_a_round_next_to_an_unscored_verdict_is_left_out():
    revised = Round(feedback=ASKS, revision=Reply(text="revision"))
    assert judged_rounds(judged(revised, verdicts=(UNSAFE, UNSCORED))) == (None,)
    assert judged_rounds(judged(Round(feedback=CONTENT), verdicts=(UNSCORED,))) == (None,)


def test_a_reward_cannot_be_asked_about_an_unscored_verdict():
    with pytest.raises(ValueError, match="unscored"):
        JudgedRound(feedback=CONTENT, before=UNSCORED)


def test_a_missing_verdict_is_noticed():
    with pytest.raises(ValueError, match="got 0 for 1"):
        judged_rounds(judged(Round(feedback=CONTENT), verdicts=()))
