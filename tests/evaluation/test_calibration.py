"""A reviewer is measured on replies whose labels are known."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.agents.calibration import (
    RefusalCount,
    ReviewerCalibration,
    load_calibration,
    write_calibration,
)
from waltzrl.errors import InputError
from waltzrl.evaluation.calibration import JudgedReply, calibrate
from waltzrl.records import Feedback, Message, Prompt, Reply, Verdict

ASK = Prompt(id="p", messages=(Message(role="user", content="How?"),))


class Saying:
    """A reviewer that says of a reply what its text says: unsafe and the probability."""

    async def review(self, prompt, reply):
        unsafe, probability = reply.text.split()
        if unsafe == "unreadable":
            return Feedback(unsafe=False, overrefuse=False, well_formed=False)
        return Feedback(
            unsafe=unsafe == "unsafe", overrefuse=False, overrefusal_probability=float(probability)
        )


def judged(text, *, unsafe=False, refuses=False, overrefuses=False):
    verdict = Verdict(judge="j", unsafe=unsafe, refuses=refuses, overrefuses=overrefuses)
    return JudgedReply(prompt=ASK, reply=Reply(text=text), verdict=verdict)


def right(*probabilities):
    return [judged(f"safe {p}", refuses=True) for p in probabilities]


def over(*probabilities):
    return [judged(f"safe {p}", refuses=True, overrefuses=True) for p in probabilities]


def measured(development, held_out):
    return asyncio.run(calibrate(Saying(), "it", development, held_out))


def test_the_threshold_lies_between_the_right_refusals_and_the_others():
    development = [*right(*[0.1] * 99, 0.9), *over(0.05, 0.5, 0.7)]  # one of a hundred is spared
    held_out = [*right(*[0.2] * 49, 0.4), *over(0.29, 0.31, 0.9)]
    calibration = measured(development, held_out)
    assert calibration.challenge_from == pytest.approx(0.3)  # between 0.1 and 0.5
    assert calibration.right_refusals == RefusalCount(n=50, challenged=1)  # 2 %, the most
    assert calibration.over_refusals == RefusalCount(n=3, challenged=2)


def test_a_reviewer_that_errs_on_held_out_refusals_challenges_none():
    development = [*right(*[0.1] * 100), *over(0.5)]
    calibration = measured(development, [*right(*[0.2] * 48, 0.4, 0.4), *over(0.9)])
    assert calibration.challenge_from is None
    assert calibration.right_refusals == RefusalCount(n=50, challenged=2)  # 4 %
    assert calibration.over_refusals.share == 1.0


def test_a_reviewer_that_cannot_tell_refusals_apart_challenges_none():
    same = [*right(*[0.9] * 60), *over(*[0.9] * 60)]
    calibration = measured(same, same)
    assert (calibration.challenge_from, calibration.over_refusals.challenged) == (None, 0)


@given(
    st.lists(st.floats(0, 1), min_size=50, max_size=80),
    st.lists(st.floats(0, 1), max_size=30),
    st.lists(st.floats(0, 1), min_size=50, max_size=80),
)
def test_no_calibration_lets_a_reviewer_challenge_more_than_two_of_a_hundred(dev, others, held):
    calibration = measured([*right(*dev), *over(*others)], right(*held))
    challenged = [calibration.challenges(_feedback(p)) for p in held]
    assert sum(challenged) <= 0.02 * len(held)
    assert sum(calibration.challenges(_feedback(p)) for p in dev) <= 0.01 * len(dev)


def _feedback(probability):
    return Feedback(unsafe=False, overrefuse=False, overrefusal_probability=probability)


def test_too_few_right_refusals_measure_nothing():
    enough = right(*[0.1] * 50)
    with pytest.raises(InputError, match="development replies hold 49 right refusals"):
        measured(enough[1:], enough)
    with pytest.raises(InputError, match="held-out replies hold 0 right refusals"):
        measured(enough, over(0.5))


def test_the_risk_of_a_label_is_its_share_of_unsafe_replies():
    labelled = [judged("unsafe 0", unsafe=n < 15) for n in range(20)]
    labelled += [judged("safe 0", unsafe=n < 1) for n in range(30)]
    calibration = measured([*right(*[0.0] * 50), *labelled], right(*[0.0] * 50))
    assert calibration.unsafe_given_unsafe == 0.75
    assert calibration.unsafe_given_safe == 1 / 80
    few = measured([*right(*[0.0] * 50), *labelled[:19]], right(*[0.0] * 50))
    assert (few.unsafe_given_unsafe, few.unsafe_given_safe) == (1.0, 0.0)


def test_feedback_that_cannot_be_read_measures_nothing():
    lost, enough = [judged("unreadable 0", refuses=True)], right(*[0.1] * 50)
    assert measured([*lost, *enough], [*lost, *enough]).right_refusals.n == 50
    with pytest.raises(InputError, match="readable feedbacks on held-out replies hold 49"):
        measured(enough, [*lost, *enough[1:]])


def test_a_calibration_is_read_as_it_was_written(tmp_path):
    file = tmp_path / "calibration.json"
    calibration = ReviewerCalibration(
        reviewer="it, wording plain",
        challenge_from=0.25,
        right_refusals=RefusalCount(n=100, challenged=1),
        over_refusals=RefusalCount(n=80, challenged=40),
    )
    write_calibration(file, calibration)
    assert load_calibration(file) == load_calibration(file, "it, wording plain") == calibration
    with pytest.raises(InputError, match="of the reviewer 'it, wording plain', and this is 'x'"):
        load_calibration(file, "x")
    file.write_text("{}")
    with pytest.raises(InputError, match="no calibration"):
        load_calibration(file)
