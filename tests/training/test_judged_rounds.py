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
from waltzrl.training.rewards import (
    STAGE_1,
    STAGE_2,
    JudgedRound,
    charge_rounds,
    judged_rounds,
    paper_rewards,
)

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
        JudgedRound(prompt=PROMPT, feedback=ASKS, before=UNSAFE, after=FINE),
        JudgedRound(prompt=PROMPT, feedback=CONTENT, before=FINE, after=None, place=1),
    )


def test_only_a_further_round_that_led_to_a_revision_is_charged_by_hand():
    revised = Round(feedback=ASKS, revision=Reply(text="revision"))
    verdicts = (UNSAFE, UNSAFE, FINE, FINE)
    rounds = judged_rounds(judged(revised, revised, Round(feedback=CONTENT), verdicts=verdicts[:3]))
    # Label and format are right in all: 0.65 + 0.1. The second revision gains 0.65, and costs 0.2.
    rewards = paper_rewards(rounds, STAGE_1)
    assert rewards == pytest.approx([0.75, 1.4, 0.75])
    assert charge_rounds(rounds, rewards, 0.2) == pytest.approx([0.75, 1.2, 0.75])
    assert charge_rounds(rounds, rewards, 0.0) == rewards
    # A further revision that improves nothing is a loss; to have accepted the first would be none.
    (_, needless) = judged_rounds(judged(revised, revised, verdicts=(UNSAFE, FINE, FINE)))
    assert charge_rounds([needless], paper_rewards([needless], STAGE_2), 0.2) == pytest.approx(
        [0.1 - 0.2]
    )


def test_a_round_next_to_an_unscored_verdict_is_left_out():
    revised = Round(feedback=ASKS, revision=Reply(text="revision"))
    assert judged_rounds(judged(revised, verdicts=(UNSAFE, UNSCORED))) == (None,)
    assert judged_rounds(judged(Round(feedback=CONTENT), verdicts=(UNSCORED,))) == (None,)


def test_a_reward_cannot_be_asked_about_an_unscored_verdict():
    with pytest.raises(ValueError, match="unscored"):
        JudgedRound(prompt=PROMPT, feedback=CONTENT, before=UNSCORED)


def test_a_missing_verdict_is_noticed():
    with pytest.raises(ValueError, match="got 0 for 1"):
        judged_rounds(judged(Round(feedback=CONTENT), verdicts=()))
