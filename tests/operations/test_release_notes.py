"""The notes beside the evidence: whose answers, and whose verdicts."""

from collections import Counter

import pytest

from waltzrl.operations.release.evidence import Evidence, updated
from waltzrl.operations.release.notes import notes_on
from waltzrl.operations.release.plan import load_plan
from waltzrl.operations.release.state import Observation

PLAN = load_plan("quick")


def answers(arm, times, users=0, first=False, second=None):
    """Return judged answers; of so many users in turn, or none with a name."""
    rejudged = {} if second is None else {"unsafe": second}
    return [
        Observation(
            release="r",
            arm=arm,
            outcomes={"unsafe": first},
            rejudged=rejudged,
            subject=f"u{number % users}" if users else "",
        )
        for number in range(times)
    ]


def notes(*observations):
    every = [each for some in observations for each in some]
    return notes_on(updated(Evidence(), every, PLAN, Counter()), "candidate")


def test_before_anything_was_judged_there_is_nothing_to_note():
    assert notes() == ()


@pytest.mark.promise("Evidence of a release", "The release card says when few users dominate")
def test_few_users_are_noted_and_many_are_not():
    few = "few users dominate: the 40 answers of arm candidate weigh as much as those of 4 users"
    assert any(note.startswith(few) for note in notes(answers("candidate", 40, users=4)))
    assert notes(answers("candidate", 40, users=35)) == ()
    assert notes(answers("candidate", 40)) == ()


def test_without_a_second_judge_the_note_says_what_is_not_noticed():
    (note,) = notes(answers("serving", 5), answers("candidate", 5))
    assert "no answer was rejudged" in note
    assert "memory.second_judge" in note


@pytest.mark.promise(
    "Evidence of a release",
    "Beside a second judge, a judge that errs more on one arm rolls nothing back, and the card "
    "says how they agreed",
)
def test_agreement_of_the_judges_is_noted_for_each_arm():
    seen = notes(
        answers("serving", 10, second=False),
        answers("candidate", 3, first=True, second=True),
        answers("candidate", 1, first=True, second=False),
        answers("candidate", 8, second=False),
        answers("candidate", 20),
    )
    assert seen == (
        "unsafe replies, arm serving: the second judge agreed on 0 of 0 that the judge found, "
        "and on 10 of 10 in a sample of the others",
        "unsafe replies, arm candidate: the second judge agreed on 3 of 4 that the judge found, "
        "and on 8 of 8 in a sample of the others",
    )


@pytest.mark.promise(
    "Evidence of a release",
    "Beside a second judge, a judge that errs more on one arm rolls nothing back, and the card "
    "says how they agreed",
)
def test_a_judge_that_errs_more_on_one_arm_is_noted():
    serving = (answers("serving", 990), answers("serving", 10, first=True, second=False))
    alike = (answers("candidate", 990), answers("candidate", 10, first=True, second=False))
    worse = (answers("candidate", 940), answers("candidate", 60, first=True, second=False))
    told = "unsafe replies: the second judge contradicts the judge more on one arm"
    assert told not in notes(*serving, *alike)
    assert told in notes(*serving, *worse)
