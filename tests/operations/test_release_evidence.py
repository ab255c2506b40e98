from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.evaluation.sample_correction import JudgeError
from waltzrl.operations.release.eprocess import Comparison
from waltzrl.operations.release.evidence import ARMS, Evidence, OutcomeCount, updated
from waltzrl.operations.release.plan import METRICS, ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Observation

STEP = ReleaseStep(percentage=5, seconds=0, samples=10)
LIMITS = ReleaseLimits(unsafe=0.1, overrefusal=0.15)
PLAN = ReleasePlan(name="both", shadow=STEP, canary=(STEP,), targets=LIMITS, limits=LIMITS)
observations = st.builds(
    Observation,
    release=st.just("r"),
    arm=st.sampled_from(ARMS),
    outcomes=st.dictionaries(st.sampled_from(METRICS), st.booleans(), max_size=5),
    subject=st.sampled_from(["", "ada", "bob"]),
)


def seen(arm, **outcomes):
    return Observation(release="r", arm=arm, outcomes=outcomes)


def test_answers_are_counted_by_arm_and_metric():
    evidence = updated(
        Evidence(),
        [
            seen("serving", unsafe=False, error=False),
            seen("candidate", unsafe=True, error=False),
            seen("candidate", overrefusal=False, error=False),
            seen("candidate", error=True),
        ],
        PLAN,
        Counter(),
    )
    candidate = evidence.tally("candidate")
    assert (candidate.answers, candidate.judged) == (3, 2)
    assert candidate.of("unsafe") == OutcomeCount(n=1, bad=1)
    assert candidate.of("overrefusal") == OutcomeCount(n=1, bad=0)
    assert candidate.of("error") == OutcomeCount(n=3, bad=1)
    assert candidate.of("slow") == OutcomeCount()
    assert evidence.tally("serving").answers == 1
    assert evidence.tally("shadow").answers == 0


def test_a_shadow_says_nothing_of_what_users_saw():
    evidence = updated(
        Evidence(), [seen("serving", unsafe=False), seen("shadow", unsafe=True)], PLAN, Counter()
    )
    assert evidence.comparison("shadow", "unsafe").e_value > 1
    assert evidence.comparison("candidate", "unsafe") == Comparison(serving="0")
    assert evidence.tally("candidate").answers == 0


def test_a_plan_without_a_shadow_keeps_no_evidence_of_one():
    plan = msgspec.structs.replace(PLAN, shadow=None)
    evidence = updated(Evidence(), [seen("serving", unsafe=False)], plan, Counter())
    assert list(evidence.comparisons) == ["candidate"]


def test_metrics_wait_for_their_own_kind():
    evidence = updated(
        Evidence(), [seen("serving", slow=False), seen("candidate", unsafe=True)], PLAN, Counter()
    )
    assert evidence.comparison("candidate", "unsafe").candidate == "1"
    assert evidence.comparison("candidate", "slow").serving == "0"


@given(st.lists(observations, max_size=30), st.integers(0, 30))
def test_another_process_goes_on_where_one_stopped(stream, stop):
    answered = Counter()
    first = updated(Evidence(), stream[:stop], PLAN, answered)
    restored = msgspec.json.decode(msgspec.json.encode(first), type=Evidence)
    assert updated(restored, stream[stop:], PLAN, answered) == updated(
        updated(Evidence(), [], PLAN, Counter()), stream, PLAN, Counter()
    )


def of(subject, arm="candidate", **outcomes):
    return Observation(release="r", arm=arm, outcomes=outcomes, subject=subject)


@pytest.mark.promise(
    "Evidence of a release",
    "Users that differ roll back no candidate that is no worse: each counts once in an arm and "
    "step",
)
def test_a_users_first_answer_in_each_arm_is_compared_and_all_are_counted():
    stream = [
        of("ada", unsafe=True),
        of("ada", unsafe=True),
        of("ada", "serving", unsafe=False),
        of("", unsafe=True),
        of("", unsafe=True),
        of("bob", error=False),
        of("bob", unsafe=True),
    ]
    evidence = updated(Evidence(), stream, PLAN, Counter())
    candidate = evidence.tally("candidate")
    assert candidate.of("unsafe") == OutcomeCount(n=5, bad=5)
    assert candidate.independent("unsafe") == OutcomeCount(n=3, bad=3)
    # One block of ada in both arms; the two of nobody's name wait.
    assert evidence.comparison("candidate", "unsafe").candidate == "11"
    assert evidence.comparison("candidate", "unsafe").e_value > 1


def test_users_are_weighed_by_their_answers_as_worked_by_hand():
    # 3, 1, and one without a name: 5^2 / (9 + 1 + 1).
    stream = [*[of("ada", error=False)] * 3, of("bob", error=False), of("", error=False)]
    evidence = updated(Evidence(), stream, PLAN, Counter())
    assert evidence.tally("candidate").users == 25 / 11
    assert evidence.tally("serving").users == 0


def test_what_a_second_judge_contradicts_is_no_evidence_and_is_counted_as_found():
    def judged(first, second):
        rejudged = {} if second is None else {"unsafe": second}
        return Observation(
            release="r", arm="candidate", outcomes={"unsafe": first}, rejudged=rejudged
        )

    pairs = [(True, True), (True, False), (False, False), (False, True), (True, None)]
    evidence = updated(Evidence(), [judged(*pair) for pair in pairs], PLAN, Counter())
    candidate = evidence.tally("candidate")
    assert candidate.of("unsafe") == OutcomeCount(n=5, bad=3)
    assert evidence.comparison("candidate", "unsafe").candidate == "10001"
    assert candidate.rejudged["unsafe"] == JudgeError(
        true_positives=1, false_positives=1, true_negatives=1, false_negatives=1
    )


def test_evidence_from_before_users_were_counted_goes_on():
    stored = b"""{"arms": {"candidate": {"answers": 2, "judged": 2,
        "counts": {"unsafe": {"n": 2, "bad": 1}}}}, "comparisons": {}}"""
    evidence = updated(
        msgspec.json.decode(stored, type=Evidence), [of("ada", unsafe=False)], PLAN, Counter()
    )
    candidate = evidence.tally("candidate")
    assert candidate.independent("unsafe") == OutcomeCount(n=3, bad=1)
    assert candidate.users == 3
