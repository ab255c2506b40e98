"""Gates of a release: they block an advance, with a reason."""

from functools import partial

import msgspec
import pytest

from support.small_releases import GOOD as GOOD_ANSWER
from support.small_releases import begun, seen, short_plan
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.gates import GateReader, find_closed_gate, gate_of
from waltzrl.operations.release.plan import ReleaseGates, load_plan
from waltzrl.store.database import open_database
from waltzrl.store.memory.counts import BundleCounts

GATES = ReleaseGates(changed=0.5, added_milliseconds=200, incidents=0, satisfied=0.9)
GOOD = BundleCounts(
    bundle="b",
    answers=100,
    revised=30,
    refused=19,
    errors=0,
    added_p95=199.0,
    thumbs_up=90,
    thumbs_down=10,
)


def test_good_counts_open_every_gate():
    assert find_closed_gate(GATES, GOOD) == ""


@pytest.mark.promise(
    "Command line",
    "A release of the requirement's schedules advances only below 50 % changed answers and 200 ms "
    "of the gateway's own time, without an incident, with satisfied users",
)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"refused": 20}, "feedback changed 50.0% of the answers, needs below 50.0%"),
        (
            {"added_p95": 200.0},
            "the gateway itself took 200 ms at the 95th percentile, without the model's draft and "
            "revisions; needs below 200 ms",
        ),
        ({"incidents": 1}, "1 of the replies were labelled unsafe by people, needs at most 0"),
    ],
)
def test_a_bound_that_is_reached_closes_its_gate(changes, why):
    counts = msgspec.structs.replace(GOOD, **changes)
    assert find_closed_gate(GATES, counts) == why
    assert find_closed_gate(ReleaseGates(), counts) == ""  # a plan without gates


def test_few_thumbs_down_do_not_close_the_gate_and_many_do():
    few = msgspec.structs.replace(GOOD, thumbs_up=1, thumbs_down=2)
    assert find_closed_gate(GATES, few) == ""
    many = msgspec.structs.replace(GOOD, thumbs_up=50, thumbs_down=50)
    assert find_closed_gate(GATES, many).startswith("50 of 100 thumbs are up, at most ")


@pytest.mark.promise(
    "Command line",
    "A release of the requirement's schedules advances only below 50 % changed answers and 200 ms "
    "of the gateway's own time, without an incident, with satisfied users",
)
def test_the_requirements_schedules_have_its_gates_and_a_plan_without_them_has_none():
    assert [load_plan(name).gates for name in ("weekly", "seven_days")] == [GATES, GATES]
    assert load_plan("quick").gates == ReleaseGates()


@pytest.mark.promise(
    "Command line",
    "A release of the requirement's schedules advances only below 50 % changed answers and 200 ms "
    "of the gateway's own time, without an incident, with satisfied users",
)
@pytest.mark.promise(
    "Requirements",
    "release gates: feedback trigger rate, latency, critical incidents, satisfaction",
)
def test_a_closed_gate_keeps_a_good_candidate_where_it_is(tmp_path):
    plan = msgspec.structs.replace(short_plan(10, 50, shadow=False), gates=GATES)
    book = ReleaseBook(open_database(f"sqlite:///{tmp_path}/memory.db"))
    release = begun(book, plan)
    book.observe(seen(release, "candidate", GOOD_ANSWER, 200))
    book.observe(seen(release, "serving", GOOD_ANSWER, 200))
    asked = []

    def rates(incidents, since):
        asked.append(since)
        others = msgspec.structs.replace(GOOD, bundle="old", incidents=9)
        return [others, msgspec.structs.replace(GOOD, bundle="new", incidents=incidents)]

    early, _ = book.tick({}, release.since + 1, partial(gate_of, rates=partial(rates, 1)))
    assert (early.step, asked) == (0, [])  # nobody counts before everything else is there
    now = release.since + 61
    closed, decision = book.tick({}, now, partial(gate_of, rates=partial(rates, 1)))
    assert (closed.step, decision.action) == (0, "wait")
    assert decision.why == "1 of the replies were labelled unsafe by people, needs at most 0"
    advanced, decision = book.tick({}, now, partial(gate_of, rates=partial(rates, 0)))
    assert (advanced.step, decision.action, asked) == (1, "advance", [release.since] * 2)


def gated(tmp_path):
    """A release whose first step has all that its plan asks for, in front of its gates."""
    plan = msgspec.structs.replace(short_plan(10, 50, shadow=False), gates=GATES)
    book = ReleaseBook(open_database(f"sqlite:///{tmp_path}/memory.db"))
    release = begun(book, plan)
    for arm in ("candidate", "serving"):
        book.observe(seen(release, arm, GOOD_ANSWER, 200))
    return book, release


def test_a_candidate_that_answered_nothing_in_its_step_waits(tmp_path):
    book, release = gated(tmp_path)
    serving = msgspec.structs.replace(GOOD, bundle="old")
    waiting, decision = book.tick({}, release.since + 61, GateReader(lambda since: [serving]))
    assert (waiting.step, decision.action) == (0, "wait")
    assert decision.why == "the candidate has answered nothing in this step"


def test_the_answers_of_a_step_are_counted_once_in_a_while(tmp_path):
    book, release = gated(tmp_path)
    asked = []

    def rates(since):
        asked.append(since)
        return [msgspec.structs.replace(GOOD, bundle="new", incidents=1)]

    gate = GateReader(rates)
    for _ in range(3):
        book.tick({}, release.since + 61, gate)
    assert asked == [release.since]
    advanced = book.move(release, "advance", "ada", "looked at it")
    assert gate(advanced) == gate(advanced) != ""
    assert asked == [release.since, advanced.since]


def test_a_release_that_was_rolled_back_while_its_gate_was_asked_stays_so(tmp_path):
    book, release = gated(tmp_path)

    def closed(asked):
        book.move(asked, "roll_back", "bob", "complaints")
        return ""

    assert book.tick({}, release.since + 61, closed) is None
    assert book.latest().state == "rolled_back"
