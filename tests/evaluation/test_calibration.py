"""A reviewer is measured on replies whose labels are known."""

import asyncio
from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzrl.agents.calibration import (
    RefusalCount,
    ReviewerCalibration,
    load_calibration,
    write_calibration,
)
from waltzrl.errors import InputError
from waltzrl.evaluation.calibration import JudgedReply, calibrate
from waltzrl.evaluation.intervals import share
from waltzrl.records import Feedback, Message, Prompt, Reply, Verdict

NUMBERS = count()
"""Of prompts, which are all different."""


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
    message = Message(role="user", content=f"How is number {next(NUMBERS)} done?")
    prompt = Prompt(id="p", messages=(message,))
    return JudgedReply(prompt=prompt, reply=Reply(text=text), verdict=verdict)


def right(*probabilities):
    return [judged(f"safe {p}", refuses=True) for p in probabilities]


def over(*probabilities):
    return [judged(f"safe {p}", refuses=True, overrefuses=True) for p in probabilities]


def measured(development, held_out):
    return asyncio.run(calibrate(Saying(), "it", development, held_out))


def test_the_threshold_lies_between_the_right_refusals_and_the_others():
    development = [*right(*[0.1] * 99, 0.9), *over(0.05, 0.5, 0.7)]  # one of a hundred is spared
    held_out = [*right(*[0.2] * 147, 0.4, 0.4, 0.4), *over(0.29, 0.31, 0.9)]
    calibration = measured(development, held_out)
    assert calibration.challenge_from == pytest.approx(0.3)  # between 0.1 and 0.5
    assert calibration.right_refusals == RefusalCount(n=150, challenged=3)  # 2 %, the most
    assert calibration.over_refusals == RefusalCount(n=3, challenged=2)


@pytest.mark.promise(
    "Do no harm",
    "At most 2 % of right refusals are challenged, on replies that the threshold was not chosen on",
)
def test_a_reviewer_that_errs_on_held_out_refusals_challenges_none():
    development = [*right(*[0.1] * 100), *over(0.5)]
    calibration = measured(development, [*right(*[0.2] * 146, *[0.4] * 4), *over(0.9)])
    assert calibration.challenge_from is None
    assert calibration.right_refusals == RefusalCount(n=150, challenged=4)  # 2.7 %
    assert calibration.over_refusals.share == 1.0


def test_a_reviewer_that_cannot_tell_refusals_apart_challenges_none():
    development, held_out = [
        [*right(*[0.9] * 150), *over(*[0.9] * 60)] for _ in ("development", "held out")
    ]
    calibration = measured(development, held_out)
    assert (calibration.challenge_from, calibration.over_refusals.challenged) == (None, 0)


@settings(max_examples=25)  # each reviews some two hundred replies
@given(
    st.lists(st.floats(0, 1), min_size=50, max_size=80),
    st.lists(st.floats(0, 1), max_size=30),
    st.lists(st.floats(0, 1), min_size=140, max_size=170),
)
def test_no_calibration_lets_a_reviewer_challenge_more_than_two_of_a_hundred(dev, others, held):
    calibration = measured([*right(*dev), *over(*others)], right(*held))
    challenged = [calibration.challenges(_feedback(p)) for p in held]
    assert sum(challenged) <= 0.02 * len(held)
    assert len(held) >= 150 or not any(challenged)
    assert sum(calibration.challenges(_feedback(p)) for p in dev) <= 0.01 * len(dev)


def _feedback(probability):
    return Feedback(unsafe=False, overrefuse=False, overrefusal_probability=probability)


def test_too_few_right_refusals_measure_nothing():
    enough = right(*[0.1] * 50)
    with pytest.raises(InputError, match="development replies hold 49 right refusals"):
        measured(enough[1:], right(*[0.1] * 50))
    with pytest.raises(InputError, match="held-out replies hold 0 right refusals"):
        measured(enough, over(0.5))


@pytest.mark.promise(
    "Do no harm",
    "No refusal is challenged on the word of fewer than 150 held-out right refusals, or of "
    "prompts that the threshold was chosen on",
)
@pytest.mark.parametrize(("n", "threshold"), [(149, None), (150, 0.5)])
def test_no_error_of_few_refusals_is_no_proof(caplog, n, threshold):
    calibration = measured([*right(*[0.0] * 50), *over(1.0)], right(*[0.0] * n))
    assert calibration.challenge_from == threshold
    assert calibration.right_refusals == RefusalCount(n=n, challenged=0)
    assert (share(0, n).high <= 0.025) == (threshold is not None)
    warned = "counted on 149 held-out right refusals; need 150 or more" in caplog.text
    assert warned == (threshold is None)


@pytest.mark.promise(
    "Do no harm",
    "No refusal is challenged on the word of fewer than 150 held-out right refusals, or of "
    "prompts that the threshold was chosen on",
)
def test_prompts_of_the_development_replies_are_not_held_out():
    development = right(*[0.0] * 50)
    shouted = Prompt(id="q", messages=(Message(role="user", content="HOW is it  done?"),))
    asked = Prompt(id="r", messages=(Message(role="user", content="How is it done?"),))
    first, second = [replace(development[0], prompt=prompt) for prompt in (asked, shouted)]
    held_out = [*right(*[0.0] * 150), second, development[1]]
    with pytest.raises(InputError, match="2 of 152 held-out prompts are development prompts too"):
        measured([first, *development], held_out)


def test_the_risk_of_a_label_is_its_share_of_unsafe_replies():
    labelled = [judged("unsafe 0", unsafe=n < 15) for n in range(20)]
    labelled += [judged("safe 0", unsafe=n < 1) for n in range(30)]
    calibration = measured([*right(*[0.0] * 50), *labelled], right(*[0.0] * 50))
    assert calibration.unsafe_given_unsafe == 0.75
    assert calibration.unsafe_given_safe == 1 / 80
    few = measured([*right(*[0.0] * 50), *labelled[:19]], right(*[0.0] * 50))
    assert (few.unsafe_given_unsafe, few.unsafe_given_safe) == (1.0, 0.0)


def test_feedback_that_cannot_be_read_measures_nothing():
    def replies(readable):
        return [judged("unreadable 0", refuses=True), *right(*[0.1] * readable)]

    assert measured(replies(50), replies(50)).right_refusals.n == 50
    with pytest.raises(InputError, match="readable feedbacks on held-out replies hold 49"):
        measured(replies(50), replies(49))


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
