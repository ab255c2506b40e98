"""What people label, in which order, and what a rate and a release make of it."""

from random import Random

import numpy as np
import pytest

from support.label_orders import ORDERS, World, label_in
from support.small_console import NOW, exchange
from support.small_releases import DESCRIPTION
from support.stores import our_store
from waltzrl.evaluation.sample_correction import DOUBT, observed_rate
from waltzrl.operations.desk.overview import estimate_served_rates
from waltzrl.operations.release.book import ReleaseBook, people_labels
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Observation
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round, Verdict
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.sampling import place_of

REVIEWED = (Round(feedback=Feedback(unsafe=False, overrefuse=False, risk=0.1)),)


@pytest.fixture
def memory(sqlite_url):
    with our_store(sqlite_url) as store:
        yield SafetyMemory(store, str, {}, {})


def serve(memory, answers, unsafe, *, found, alarms, **fields):
    """Serve answers that the reviewer passes; return what people say of each, and the judge."""
    said = Collaboration(
        prompt=Prompt(id="p", messages=(Message(role="user", content="q"),)),
        draft=Reply(text="a"),
        rounds=REVIEWED,
    )
    ids = [f"a{number}" for number in range(answers)]
    memory.remember([exchange(id_, said, **fields) for id_ in ids])
    called = dict.fromkeys(ids, False) | dict.fromkeys(ids[:found], True)
    called |= dict.fromkeys(ids[unsafe : unsafe + alarms], True)
    for id_, is_called in called.items():
        memory.store_verdict(id_, Verdict(judge="j", unsafe=is_called, overrefuses=False))
    truth = dict.fromkeys(ids, "correct") | dict.fromkeys(ids[:unsafe], "unsafe")
    return truth, called


def rate_of(memory):
    (counts,) = memory.rates(NOW - 100)
    return estimate_served_rates(counts)["unsafe (judge)"]


@pytest.mark.promise(
    "Labels",
    "Only a random sample of the answers that are counted corrects the judge's rates, in whatever "
    "order people label",
)
def test_160_labels_where_the_judge_disagrees_leave_the_rate_of_510_answers_as_it_was(memory):
    truth, _ = serve(memory, 510, 108, found=97, alarms=28)
    before = rate_of(memory)
    assert (before.value, before.bad) == (pytest.approx(0.245, abs=1e-3), 125)
    label_in(memory, truth, 160, order="disagreement")
    assert rate_of(memory) == before == observed_rate(125, 510)
    label_in(memory, truth, 60, order="sample")
    after = rate_of(memory)
    assert after.corrected
    assert after.low < 108 / 510 < after.high
    assert after.value == pytest.approx(108 / 510, abs=0.05)


PLAN = ReleasePlan(
    name="small",
    shadow=None,
    canary=(ReleaseStep(percentage=5, seconds=0, samples=200),),
    targets=ReleaseLimits(unsafe=0.05, overrefusal=0.10),
    limits=ReleaseLimits(unsafe=0.5, overrefusal=0.15),
)


@pytest.mark.promise(
    "Labels",
    "Only a random sample of the answers that are counted corrects the judge's rates, in whatever "
    "order people label",
)
@pytest.mark.parametrize("order", ["disagreement", "sample"])
def test_a_candidate_of_which_17_percent_are_unsafe_does_not_advance(memory, order):
    book = ReleaseBook(memory.store.engine)
    for bundle in ("old", "new"):
        book.add_bundle(bundle, "{}", DESCRIPTION, is_base=bundle == "old")
    release = book.propose("new", "old", PLAN, "ada", "to try it")
    where = {"release": release.id, "arm": "candidate", "bundle": "new"}
    truth, called = serve(memory, 239, 41, found=37, alarms=14, **where)
    in_turn = list(called.values())
    Random(3).shuffle(in_turn)
    book.observe(
        [
            Observation(release=release.id, arm=arm, outcomes={"unsafe": bad, "overrefusal": False})
            for bad in in_turn
            for arm in ("serving", "candidate")
        ]
    )
    label_in(memory, truth, 146, order=order)
    labels = people_labels(memory.release_calibrations(release.id))
    moved, decision = book.tick(labels, release.since + 10)
    rate = decision.rates["candidate"]["unsafe"]
    assert (moved.state, decision.action, rate.bad) == ("canary", "wait", 51)
    assert decision.why.startswith("unsafe replies may be ")
    assert rate.corrected == (order == "sample")
    assert rate.low < 41 / 239 < rate.high
    assert not decision.rates["serving"]["unsafe"].corrected  # nobody labelled its answers


@pytest.mark.promise(
    "Labels",
    "Only a random sample of the answers that are counted corrects the judge's rates, in whatever "
    "order people label",
)
def test_78_labels_of_ordinary_traffic_claim_no_rate_of_zero(memory):
    truth, _ = serve(memory, 358, 13, found=13, alarms=28)
    label_in(memory, truth, 78, order="disagreement")
    assert rate_of(memory) == observed_rate(41, 358)
    label_in(memory, truth, 40, order="sample")
    rate = rate_of(memory)
    assert rate.corrected
    assert rate.low < 13 / 358 < rate.high


@pytest.mark.promise(
    "Labels",
    "Only a random sample of the answers that are counted corrects the judge's rates, in whatever "
    "order people label",
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("answers", "rate", "alarms"), [(510, 0.212, 0.07), (358, 0.06, 0.02)])
def test_in_no_order_of_labels_is_the_true_rate_outside_or_a_bad_candidate_advanced(
    answers, rate, alarms, order
):
    """20 sets of answers, 80 labels by the order and 80 of the sample, a look at every 40."""
    dice = np.random.default_rng(11)
    outside = advanced = 0
    for _ in range(20):
        world = World.drawn(answers, rate, 0.9, alarms, dice)
        looks = list(world.looks(order, 80, 80, 40))
        outside += any(look.corrected and not look.low <= rate <= look.high for look in looks)
        advanced += any(look.high <= 0.05 for look in looks)
        assert looks[-1].corrected
    assert max(outside, advanced) / 20 <= DOUBT


def test_the_simulation_is_the_real_thing(memory):
    truth, called = serve(memory, 120, 30, found=25, alarms=10)
    world = World(
        unsafe=np.array([truth[id_] == "unsafe" for id_ in truth]),
        called=np.array(list(called.values())),
        reviewer=np.zeros(120, dtype=bool),
        topic=np.zeros(120),
        place=np.array([place_of(id_, is_bad=called[id_]) for id_ in truth]),
    )
    (simulated,) = world.looks("sample", 50, 0, 50)
    label_in(memory, truth, 50, order="sample")
    assert rate_of(memory) == simulated
