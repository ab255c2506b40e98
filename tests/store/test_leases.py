"""Queues give each evaluation to one person at a time."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from support.small_console import collaboration, exchange
from waltzrl.store.database import open_database
from waltzrl.store.memory.labels import LabelEvent, in_force
from waltzrl.store.memory.queue import QueueSelection
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.memory.tables import LEASES


def opened(url):
    return SafetyMemory(MemoryStore(open_database(url), scrub=str), str, {}, {})


@pytest.fixture
def memory(database_url):
    memory = opened(database_url)
    yield memory
    memory.store.engine.dispose()


def remember(memory, names):
    memory.remember(
        [exchange(name, collaboration(name), seconds_ago=ord(name[0])) for name in names]
    )


def of(person, **fields):
    return QueueSelection(rater=person, **{"needs": 1, **fields})


def test_what_one_person_has_is_given_to_no_other(memory):
    remember(memory, "ab")
    assert [memory.take_next(of(who)) for who in ("ada", "grace", "max")] == ["a", "b", None]
    assert memory.take_next(of("ada")) == "a"  # their own comes back
    assert (memory.holder("a"), memory.holder("b")) == ("ada", "grace")


def test_what_was_left_out_is_free_again_and_comes_last(memory):
    remember(memory, "abc")
    assert memory.take_next(of("ada")) == "a"
    assert memory.take_next(of("ada"), after="a") == "b"
    assert memory.take_next(of("grace")) == "a"
    assert memory.take_next(of("ada"), after="b") == "c"
    assert memory.take_next(of("ada"), after="c") == "b"


@pytest.mark.promise(
    "Labels",
    "Two people never get the same one of a queue; a lease ends with the label, or by itself",
)
def test_a_label_ends_a_lease_and_the_need_for_one(memory):
    remember(memory, "ab")
    memory.take_next(of("ada"))
    memory.label("a", LabelEvent(by="ada", reply="correct"))
    assert memory.holder("a") is None
    assert memory.take_next(of("grace")) == "b"
    assert memory.take_next(of("max", needs=2)) == "a"  # a second person labels it
    assert memory.take_next(of("ada", needs=2)) is None  # never the same one again
    memory.undo_label("a", "ada")
    assert memory.queue_length(of("grace")) == 2


@pytest.mark.promise(
    "Labels",
    "Two people never get the same one of a queue; a lease ends with the label, or by itself",
)
def test_a_lease_ends_by_itself(memory):
    remember(memory, "a")
    memory.take_next(of("ada"))
    with memory.store.engine.begin() as connection:
        connection.execute(update(LEASES).values(ends=0.0))
    assert memory.holder("a") is None
    assert memory.take_next(of("grace")) == "a"


def test_errors_have_no_reply_to_label(memory):
    memory.remember([exchange("e1")])
    assert memory.take_next(of("ada")) is None


@pytest.mark.promise(
    "Labels",
    "Two people never get the same one of a queue; a lease ends with the label, or by itself",
)
def test_people_at_once_never_get_the_same_one(memory, database_url):
    names = [f"{letter}{number}" for letter in "abcd" for number in range(6)]
    remember(memory, names)
    start = Barrier(3)

    def work(person):
        own = opened(database_url)  # a process of its own has connections of its own
        given = []
        start.wait()
        while (id_ := own.take_next(of(person))) is not None:
            given.append(id_)
            own.label(id_, LabelEvent(by=person, reply="correct"))
        own.store.engine.dispose()
        return given

    with ThreadPoolExecutor(3) as pool:
        given = list(pool.map(work, ("ada", "grace", "max")))
    assert sorted(id_ for ids in given for id_ in ids) == sorted(names)
    assert all(len(memory.evaluation(name).labels) == 1 for name in names)


events = st.lists(
    st.builds(
        LabelEvent,
        by=st.sampled_from(["ada", "grace", "max"]),
        action=st.sampled_from(["label", "withdraw"]),
        reply=st.just("correct"),
    ),
    max_size=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(events)
def test_a_need_follows_from_the_labels_in_force(memory, said):
    memory.remember([exchange("a", collaboration())])
    for event in said:
        memory.label("a", event)
    raters = set(in_force(said))
    for person in ("ada", "grace"):
        for needs in (1, 2, 3):
            expected = ["a"] if person not in raters and len(raters) < needs else []
            assert memory.ids(of(person, needs=needs)) == expected


def test_a_list_tells_what_a_person_has_labelled_from_what_others_have(memory):
    remember(memory, "abc")
    memory.label("a", LabelEvent(by="ada", reply="correct"))
    memory.label("b", LabelEvent(by="grace", reply="correct"))
    memory.label("b", LabelEvent(by="grace", action="withdraw"))
    rated = {
        rated: memory.ids(QueueSelection(rater="ada", rated=rated))
        for rated in ("yes", "no", "others")
    }
    assert {name: sorted(ids) for name, ids in rated.items()} == {
        "yes": ["a"],
        "no": ["b", "c"],
        "others": ["b"],
    }
