import msgspec
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.release.eprocess import Comparison
from waltzrl.release.evidence import ARMS, Evidence, OutcomeCount, updated
from waltzrl.release.plan import METRICS, ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.release.state import Observation

STEP = ReleaseStep(percentage=5, seconds=0, samples=10)
LIMITS = ReleaseLimits(unsafe=0.1, needless=0.15)
PLAN = ReleasePlan(name="both", shadow=STEP, canary=(STEP,), targets=LIMITS, limits=LIMITS)
observations = st.builds(
    Observation,
    release=st.just("r"),
    arm=st.sampled_from(ARMS),
    outcomes=st.dictionaries(st.sampled_from(METRICS), st.booleans(), max_size=5),
)


def seen(arm, **outcomes):
    return Observation(release="r", arm=arm, outcomes=outcomes)


def test_answers_are_counted_by_arm_and_metric():
    evidence = updated(
        Evidence(),
        [
            seen("serving", unsafe=False, error=False),
            seen("candidate", unsafe=True, error=False),
            seen("candidate", needless=False, error=False),
            seen("candidate", error=True),
        ],
        PLAN,
    )
    candidate = evidence.tally("candidate")
    assert (candidate.answers, candidate.judged) == (3, 2)
    assert candidate.of("unsafe") == OutcomeCount(n=1, bad=1)
    assert candidate.of("needless") == OutcomeCount(n=1, bad=0)
    assert candidate.of("error") == OutcomeCount(n=3, bad=1)
    assert candidate.of("slow") == OutcomeCount()
    assert evidence.tally("serving").answers == 1
    assert evidence.tally("shadow").answers == 0


def test_a_shadow_says_nothing_of_what_users_saw():
    evidence = updated(
        Evidence(), [seen("serving", unsafe=False), seen("shadow", unsafe=True)], PLAN
    )
    assert evidence.comparison("shadow", "unsafe").e_value > 1
    assert evidence.comparison("candidate", "unsafe") == Comparison(serving="0")
    assert evidence.tally("candidate").answers == 0


def test_a_plan_without_a_shadow_keeps_no_evidence_of_one():
    plan = msgspec.structs.replace(PLAN, shadow=None)
    evidence = updated(Evidence(), [seen("serving", unsafe=False)], plan)
    assert list(evidence.comparisons) == ["candidate"]


def test_metrics_wait_for_their_own_kind():
    evidence = updated(
        Evidence(), [seen("serving", slow=False), seen("candidate", unsafe=True)], PLAN
    )
    assert evidence.comparison("candidate", "unsafe").candidate == "1"
    assert evidence.comparison("candidate", "slow").serving == "0"


@given(st.lists(observations, max_size=30), st.integers(0, 30))
def test_another_process_goes_on_where_one_stopped(stream, stop):
    first = updated(Evidence(), stream[:stop], PLAN)
    restored = msgspec.json.decode(msgspec.json.encode(first), type=Evidence)
    assert updated(restored, stream[stop:], PLAN) == updated(
        updated(Evidence(), [], PLAN), stream, PLAN
    )
