from collections import Counter

import msgspec
import pytest

from waltzrl.evaluation.sample_correction import DO_NOT_FIT, LabelledSample
from waltzrl.operations.release.decision import PUZZLING, SUSPICIOUS, WEIGHTS, Decision, decide
from waltzrl.operations.release.evidence import Evidence, updated
from waltzrl.operations.release.plan import METRICS, ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Observation, Release

PLAN = ReleasePlan(
    name="small",
    shadow=None,
    canary=(
        ReleaseStep(percentage=5, seconds=60, samples=100),
        ReleaseStep(percentage=50, seconds=600, samples=200),
    ),
    targets=ReleaseLimits(unsafe=0.05, overrefusal=0.1),
    limits=ReleaseLimits(unsafe=0.1, overrefusal=0.15),
)
RELEASE = Release(id="r", candidate="new", serving="old", plan=PLAN, state="canary", since=1000.0)
SHADOWED = msgspec.structs.replace(PLAN, shadow=ReleaseStep(percentage=20, seconds=30, samples=50))
SHADOW = msgspec.structs.replace(RELEASE, plan=SHADOWED, state="shadow")
CANARY_AFTER_SHADOW = msgspec.structs.replace(RELEASE, plan=SHADOWED)
GOOD = dict.fromkeys(METRICS, False)


def seen(arm, times=1, **bad):
    return [Observation(release="r", arm=arm, outcomes=GOOD | bad)] * times


def shown(*observations, release=RELEASE):
    every = [each for some in observations for each in some]
    return updated(Evidence(), every, release.plan, Counter())


def decided(*observations, release=RELEASE, labels=None, now=5000.0):
    return decide(release, shown(*observations, release=release), labels or {}, now)


def test_the_weights_are_shares_of_alpha():
    assert sum(WEIGHTS.values()) == pytest.approx(1)
    assert max(WEIGHTS, key=WEIGHTS.__getitem__) == "unsafe"


def test_nothing_is_decided_before_anything_was_seen():
    decision = decided()
    assert (decision.action, decision.why) == ("wait", "needs 100 more judged answers")
    assert decision.e_value == pytest.approx(1)
    assert decision.needed == pytest.approx(20)
    assert decision.rates["candidate"]["unsafe"].value is None
    assert not decision.corrected


def test_answers_nobody_judged_are_not_among_those_needed():
    unjudged = [Observation(release="r", arm="candidate", outcomes={"error": False})] * 500
    decision = decided(seen("candidate", 77), unjudged)
    assert decision.why == "needs 23 more judged answers"


def test_where_nobody_judges_that_is_said():
    unjudged = [Observation(release="r", arm="candidate", outcomes={"error": False})] * 7
    why = "needs 100 more judged answers; of 7 none was judged: check memory.judge"
    assert decided(unjudged).why == why


def test_where_the_candidate_answers_nothing_that_is_said():
    few, many = (decided(seen("serving", n)).why for n in (PUZZLING - 1, PUZZLING))
    assert few == "needs 100 more judged answers"
    assert many == f"{few}; the candidate gave none of 100: check the gateways' logs"
    known = decided(seen("serving", 100), seen("shadow", 50), release=CANARY_AFTER_SHADOW)
    assert known.why == few  # the canary has just begun


def test_the_shortest_stay_is_waited_for():
    decision = decided(seen("serving", 100), seen("candidate", 100), now=1020.0)
    assert (decision.action, decision.why) == ("wait", "needs 40 s more")


def test_a_spotless_candidate_advances():
    decision = decided(seen("serving", 100), seen("candidate", 100))
    assert decision.action == "advance"
    assert decision.why == (
        "unsafe replies 0.0 % (0.0 to 4.4 %, 0 of 100); "
        "over-refusals 0.0 % (0.0 to 4.4 %, 0 of 100)"
    )


def test_the_bound_must_lie_under_the_target_and_not_the_rate():
    decision = decided(seen("serving", 100), seen("candidate", 99), seen("candidate", unsafe=True))
    assert decision.action == "wait"
    assert decision.why == "unsafe replies may be 7.04 %, needs at most 5 %"


def test_each_step_has_its_own_needs():
    second = msgspec.structs.replace(RELEASE, step=1)
    arms = seen("serving", 150), seen("candidate", 150)
    assert decided(*arms).action == "advance"
    assert decided(*arms, release=second).why == "needs 50 more judged answers"


def test_what_is_held_stays_but_is_still_rolled_back():
    held = msgspec.structs.replace(RELEASE, held=True)
    arms = seen("serving", 100), seen("candidate", 100)
    assert decided(*arms, release=held).why == "held; the history says why"
    bad = decided(seen("serving", 100), seen("candidate", 20, unsafe=True), release=held)
    assert bad.action == "roll_back"


def test_a_suspicion_on_any_metric_is_waited_out():
    beside = seen("serving", 19)
    good = (beside + seen("candidate")) * 100
    slow = (beside + seen("candidate", slow=True)) * 3
    decision = decided(good, slow)
    assert decision.action == "wait"
    assert decision.why.startswith("slow answers may have become more frequent, e-value ")
    assert decision.e_values["slow"] >= SUSPICIOUS
    assert decision.e_value < decision.needed
    assert decided(good).action == "advance"


def test_a_worse_candidate_goes_and_both_rates_are_told():
    decision = decided(
        seen("serving", 190), seen("candidate", 5), seen("candidate", 5, unsafe=True)
    )
    assert decision.action == "roll_back"
    assert decision.why == (
        "unsafe replies: 50.0 % (8.9 to 91.1 %, 5 of 10) of the candidate against "
        "0.0 % (0.0 to 2.5 %, 0 of 190) of the serving bundle, e-value 22,800"
    )


def test_a_candidate_beyond_a_limit_goes_though_the_serving_bundle_is_no_better():
    mixed = seen("serving", overrefusal=True) + seen("candidate", overrefusal=True)
    decision = decided(mixed * 10)
    assert decision.e_values["overrefusal"] < 1
    assert decision.action == "roll_back"
    assert "of the candidate beyond the limit of 15 %, e-value" in decision.why


@pytest.mark.parametrize(
    ("release", "arm", "answers"),
    [(RELEASE, "candidate", 4), (SHADOW, "shadow", 5), (CANARY_AFTER_SHADOW, "candidate", 4)],
)
def test_a_catastrophe_needs_no_rule_of_its_own(release, arm, answers):
    """Nothing but unsafe replies, and as yet nothing to compare them with."""
    almost = decided(seen(arm, answers - 1, unsafe=True), release=release)
    enough = decided(seen(arm, answers, unsafe=True), release=release)
    assert (almost.action, enough.action) == ("wait", "roll_back")


def test_three_unsafe_replies_in_a_row_are_enough_beside_a_spotless_bundle():
    for release in (RELEASE, CANARY_AFTER_SHADOW):
        waiting = seen("serving", 190)
        almost = decided(waiting, seen("candidate", 2, unsafe=True), release=release)
        enough = decided(waiting, seen("candidate", 3, unsafe=True), release=release)
        assert (almost.action, enough.action) == ("wait", "roll_back")


def test_a_shadow_is_judged_by_what_the_shadow_said():
    unsafe = seen("candidate", 10, unsafe=True)
    decision = decided(seen("serving", 100), unsafe, seen("shadow", 100), release=SHADOW)
    assert decision.action == "advance"
    assert list(decision.rates) == ["serving", "candidate", "shadow"]


def test_shadow_and_canary_share_alpha():
    shadow, canary = decided(release=SHADOW), decided(release=CANARY_AFTER_SHADOW)
    assert 1 / shadow.needed + 1 / canary.needed == pytest.approx(SHADOWED.alpha)


@pytest.mark.parametrize("state", ["full", "rolled_back"])
def test_a_release_that_is_over_is_left_alone(state):
    over = msgspec.structs.replace(RELEASE, state=state)
    decision = decided(seen("serving", 19), seen("candidate", 50, unsafe=True), release=over)
    assert (decision.action, decision.why) == ("wait", "the release is over")


def test_a_judge_that_cries_wolf_rolls_nobody_back():
    # of 40 answers that the judge calls unsafe people call 2 unsafe, in both arms
    wolf = {
        "unsafe": LabelledSample(true_positives=2, false_positives=38, true_negatives=160),
    }
    arms = (seen("serving") + seen("candidate")) * 160
    alarms = (seen("serving", unsafe=True) + seen("candidate", unsafe=True)) * 40
    trusting = decided(arms + alarms)
    knowing = decided(arms + alarms, labels={"serving": wolf, "candidate": wolf})
    assert "of the candidate beyond the limit of 10 %" in trusting.why
    assert (trusting.action, knowing.action) == ("roll_back", "wait")
    assert knowing.rates["candidate"]["unsafe"].value == pytest.approx(0.01)
    assert knowing.rates["candidate"]["overrefusal"].corrected is False
    assert knowing.corrected == ["unsafe"]


def test_a_judge_that_overlooks_much_promotes_nobody():
    blind = LabelledSample(false_negatives=8, true_negatives=80)
    arms = seen("serving", 120), seen("candidate", 120)
    assert decided(*arms).action == "advance"
    decision = decided(*arms, labels={"candidate": {"unsafe": blind, "overrefusal": blind}})
    assert decision.corrected
    assert decision.why.startswith("unsafe replies may be ")


def test_labels_of_one_arm_correct_no_other():
    sample = LabelledSample(false_negatives=8, true_negatives=80)
    arms = seen("serving", 120), seen("candidate", 120)
    decision = decided(*arms, labels={"serving": {"unsafe": sample}})
    assert decision.rates["serving"]["unsafe"].corrected
    assert not decision.rates["candidate"]["unsafe"].corrected
    assert decision.action == "advance"


def test_a_handful_of_labels_corrects_nothing():
    few = LabelledSample(true_negatives=9)
    arms = seen("serving", 120), seen("candidate", 120)
    decision = decided(*arms, labels={"candidate": {"unsafe": few, "overrefusal": few}})
    assert decision == decided(*arms)
    assert not decision.corrected


def test_labels_that_do_not_fit_are_told_and_let_nothing_advance():
    misfit = LabelledSample(false_positives=12, true_negatives=148)
    found = seen("candidate", 12, unsafe=True)
    decision = decided(
        seen("serving", 120),
        found,
        seen("candidate", 148),
        labels={"candidate": {"unsafe": misfit}},
    )
    rate = decision.rates["candidate"]["unsafe"]
    assert (rate.note, rate.value) == (DO_NOT_FIT, 0.075)
    assert any(
        note.startswith(f"unsafe replies, arm candidate: {DO_NOT_FIT}") for note in decision.notes
    )
    assert decision.action != "advance"


def test_the_difference_of_the_arms_has_an_interval():
    decision = decided(
        seen("serving", 96),
        seen("serving", 4, slow=True),
        seen("candidate", 90),
        seen("candidate", 10, slow=True),
    )
    slower = decision.differences["slow"]
    assert slower.value == pytest.approx(0.06)
    assert slower.low < 0 < slower.high < 0.3
    assert list(decision.differences) == list(METRICS)


def test_a_decision_can_be_kept():
    decision = decided(seen("serving", 19), seen("candidate", 50, unsafe=True))
    assert msgspec.json.decode(msgspec.json.encode(decision), type=Decision) == decision
