"""The random sample of answers that people label, and what their labels say of the judge."""

import pytest

from support.label_orders import label_in
from support.small_console import NOW, collaboration, exchange
from support.stores import our_store
from waltzrl.records import Verdict
from waltzrl.store.memory.labels import Calibration, LabelEvent
from waltzrl.store.memory.queue import QueueSelection
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.sampling import ReachedPlace, SampleFrontier, place_of
from waltzrl.store.notices import notices_after


@pytest.fixture
def memory(database_url):
    with our_store(database_url) as store:
        yield SafetyMemory(store, str, {}, {})


def test_what_came_after_the_furthest_label_is_drawn_from_then_on():
    frontier = SampleFrontier(
        [ReachedPlace(10.0, 50), ReachedPlace(20.0, 30), ReachedPlace(30.0, 40)]
    )
    assert frontier.furthest == 50
    passed = [(time, place) for time in (5.0, 15.0, 25.0, 35.0) for place in (30, 40, 50, 60)]
    assert [each for each in passed if frontier.has_passed(*each)] == [
        (5.0, 30), (5.0, 40), (5.0, 50), (15.0, 30), (15.0, 40), (25.0, 30), (25.0, 40),
    ]  # fmt: skip
    assert not SampleFrontier([]).has_passed(0.0, 0)


def judged(memory, verdicts, **fields):
    """Remember answers that the judge called unsafe, or not."""
    time = fields.pop("time", NOW)
    memory.remember(
        [exchange(id_, collaboration(id_), seconds_ago=NOW - time, **fields) for id_ in verdicts]
    )
    for id_, unsafe in verdicts.items():
        memory.store_verdict(id_, Verdict(judge="j", unsafe=unsafe, overrefuses=False))


VERDICTS = {f"i{number}": number % 5 == 0 for number in range(60)}
CORRECT = dict.fromkeys(VERDICTS, "correct")


def test_the_sample_is_in_the_same_order_on_every_database_and_draws_more_of_what_is_bad(memory):
    judged(memory, VERDICTS)
    listed = [each.evaluation.id for each in memory.queue(QueueSelection(order="sample"), limit=99)]
    assert listed == sorted(listed, key=lambda id_: place_of(id_, is_bad=VERDICTS[id_]))
    assert memory.queue_length(QueueSelection(order="sample")) == 60
    third = listed[2]
    assert memory.neighbours(QueueSelection(order="sample"), third) == (listed[1], listed[3])
    label_in(memory, CORRECT, 3, order="sample")
    left = memory.queue(QueueSelection(order="sample"), limit=99)
    assert [each.evaluation.id for each in left] == listed[3:]
    # of 12 bad ones more than their fifth of the first 20
    assert sum(VERDICTS[id_] for id_ in listed[:20]) > 6


@pytest.mark.promise(
    "Labels",
    "Only a random sample of the answers that are counted corrects the judge's rates, in whatever "
    "order people label",
)
def test_only_the_random_sample_measures_the_judge(memory):
    """The first label in the order counts; those by another way once the order has passed them."""
    judged(memory, VERDICTS)
    order = sorted(VERDICTS, key=lambda id_: place_of(id_, is_bad=VERDICTS[id_]))
    for id_ in (order[0], order[2], order[50]):
        picked = LabelEvent(by="ada", reply="unsafe", steers=True, selection="disagreement")
        memory.label(id_, picked)
    memory.label(order[1], LabelEvent(by="ada", reply="unsafe", steers=True))  # of no known way
    assert memory.calibration() == Calibration()
    label_in(memory, CORRECT, 1, order="sample")  # the fourth
    unsafe = memory.calibration().unsafe
    found = sum(VERDICTS[id_] for id_ in order[:3])
    assert (unsafe.true_positives, unsafe.false_negatives) == (found, 3 - found)
    assert unsafe.false_positives + unsafe.true_negatives == 1


@pytest.mark.promise(
    "Labels",
    "Where people differ, the label is disputed, kappa is shown, and the judge's error is bounded "
    "for either outcome",
)
def test_what_is_passed_over_or_disputed_is_unknown(memory):
    judged(memory, VERDICTS)
    first, second, third = [
        each.evaluation.id for each in memory.queue(QueueSelection(order="sample"), limit=3)
    ]
    in_order = {"steers": True, "selection": "sample"}
    memory.label(third, LabelEvent(by="ada", time=NOW + 9, reply="correct", **in_order))
    memory.label(second, LabelEvent(by="max", reply="correct"))  # steers no release
    for by, reply in (("ada", "correct"), ("eve", "unsafe")):
        memory.label(first, LabelEvent(by=by, time=NOW + 9, reply=reply, **in_order))
    unsafe = memory.calibration().unsafe
    passed = [VERDICTS[first], VERDICTS[second]]
    assert unsafe.unknown_positives + unsafe.unknown_negatives == 2
    assert unsafe.unknown_positives == sum(passed)
    assert unsafe.false_positives + unsafe.true_negatives == 1


@pytest.mark.promise(
    "Labels",
    "Only a random sample of the answers that are counted corrects the judge's rates, in whatever "
    "order people label",
)
def test_answers_that_come_later_are_drawn_from_then_on(memory):
    judged(memory, VERDICTS)
    label_in(memory, CORRECT, 20, order="sample")
    before = memory.calibration().unsafe
    later = {f"later{number}": False for number in range(60)}
    judged(memory, later, time=NOW + 5000)
    assert memory.calibration().unsafe == before  # none of them counts as passed over
    (queued,) = memory.queue(QueueSelection(order="sample"), limit=1)
    assert queued.evaluation.id in later


@pytest.mark.promise(
    "Labels",
    "Only a random sample of the answers that are counted corrects the judge's rates, in whatever "
    "order people label",
)
def test_the_samples_of_bundles_and_arms_are_apart(memory):
    judged(memory, VERDICTS, release="r", arm="serving")
    other = {f"new{number}": number % 5 == 0 for number in range(60)}
    judged(memory, other, bundle="b2", release="r", arm="candidate")
    label_in(memory, dict.fromkeys(other, "correct"), 20, order="sample", filters={"bundle": "b2"})
    calibrations = memory.release_calibrations("r")
    assert "serving" not in calibrations or calibrations["serving"] == Calibration()
    candidate = calibrations["candidate"].unsafe
    assert candidate.false_positives + candidate.true_negatives > 10
    assert memory.release_calibrations("another") == {}
    new, old = memory.rates(since=NOW - 1)
    assert (old.labels, new.labels) == (Calibration(), calibrations["candidate"])
    (period,) = [each for each in memory.periods([NOW + 10], 20) if each.category == ""]
    assert period.labels == calibrations["candidate"]


def test_the_way_to_a_label_is_kept_and_audited(memory):
    memory.remember([exchange("i1", collaboration())])
    memory.label("i1", LabelEvent(by="ada", reply="correct", selection="search"))
    assert memory.evaluation("i1").labels[0].selection == "search"
    assert notices_after(memory.store.engine, 0)[0].body["selection"] == "search"
