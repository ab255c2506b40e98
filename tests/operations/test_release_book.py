import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from support.small_releases import BAD, DESCRIPTION, GOOD, begun, seen, short_plan
from waltzrl.errors import InputError
from waltzrl.operations.release.book import COUNTED_AT_ONCE, MOST_POINTS, ReleaseBook, least_needed
from waltzrl.operations.release.state import Observation
from waltzrl.operations.release.tables import ANSWERED, OBSERVATIONS, RELEASES
from waltzrl.store.database import open_database, reading, writing
from waltzrl.store.notices import notices_after

PLAN = short_plan(10, 50)


@pytest.fixture
def engine(database_url):
    engine = open_database(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def book(engine):
    return ReleaseBook(engine)


def to_full(book, release, moves=3):
    for _ in range(moves):
        release = book.move(release, "advance", "ada", "looks good")
    return release


def test_an_empty_book_knows_nothing(book):
    assert (book.current(), book.latest(), book.view(), book.serving()) == (None,) * 4
    assert (book.base(), book.bundles(), book.bundle("new")) == (None, [], None)
    assert book.tick({}, 0.0) is None


@pytest.mark.promise("Legal duties", "AI Act 12(2)(a): substantial modifications are recorded")
def test_a_bundle_never_changes(book):
    book.add_bundle("b", "first", DESCRIPTION)
    book.add_bundle("b", "second", DESCRIPTION)
    assert (book.bundles(), book.bundle("b")) == (["b"], "first")


def test_the_base_is_what_a_gateway_said_last(book):
    book.add_bundle("a", "{}", DESCRIPTION, is_base=True)
    book.add_bundle("b", "{}", DESCRIPTION, is_base=True)
    book.add_bundle("c", "{}", DESCRIPTION)
    assert book.base() == "b"
    book.add_bundle("a", "{}", DESCRIPTION, is_base=True)
    assert book.base() == "a"


@pytest.mark.promise("Legal duties", "AI Act 12(2)(a): substantial modifications are recorded")
def test_every_move_is_written_down_and_told_to_all(book, engine):
    release = begun(book, PLAN)
    book.move(to_full(book, release), "roll_back", "bob", "complaints")
    history = book.history(release.id)
    assert [(t.action, t.by, t.before, t.after, t.percentage) for t in history] == [
        ("propose", "ada", "off", "shadow", 0.0),
        ("advance", "ada", "shadow", "canary", 10.0),
        ("advance", "ada", "canary", "canary", 50.0),
        ("advance", "ada", "canary", "full", 100.0),
        ("roll_back", "bob", "full", "rolled_back", 0.0),
    ]
    told = notices_after(engine, 0)
    assert [(n.kind, n.body["action"], n.body["state"]) for n in told] == [
        ("release", t.action, t.after) for t in history
    ]
    assert told[-1].body == {
        "release": release.id, "candidate": "new", "serving": "old", "state": "rolled_back",
        "percentage": 0.0, "policy": "", "action": "roll_back", "by": "bob", "why": "complaints",
    }  # fmt: skip


def test_a_refused_move_is_told_to_nobody(book, engine):
    release = begun(book, PLAN)
    with pytest.raises(InputError):
        book.move(release, "resume", "ada", "")
    assert len(book.history(release.id)) == len(notices_after(engine, 0)) == 1


@pytest.mark.promise("Requirements", "FeatureFlagManager")
def test_the_state_survives_a_restart(book, database_url):
    release = book.move(begun(book, PLAN), "advance", "ada", "")
    fresh = open_database(database_url)
    assert ReleaseBook(fresh).current() == release
    fresh.dispose()


def test_rolling_back_a_full_release_brings_back_what_served_before(book):
    first = to_full(book, begun(book, PLAN, "b", "a"))
    assert book.serving() == "b"
    second = to_full(book, begun(book, PLAN, "c", "b"))
    assert book.serving() == "c"
    book.move(second, "roll_back", "ada", "")
    assert book.serving() == "b"
    book.move(first, "roll_back", "ada", "")
    assert book.serving() is None


def test_a_release_that_another_was_built_on_is_not_rolled_back_first(book):
    first = to_full(book, begun(book, PLAN, "b", "a"))
    second = begun(book, PLAN, "c", "b")
    with pytest.raises(InputError, match=f"release {second.id} came after"):
        book.move(first, "roll_back", "ada", "")
    book.move(second, "roll_back", "ada", "")
    assert book.move(first, "roll_back", "ada", "").state == "rolled_back"


def test_only_one_release_is_under_way(book):
    release = begun(book, PLAN, "b", "a")
    with pytest.raises(InputError, match="a release is under way"):
        begun(book, PLAN, "c", "a")
    book.move(release, "roll_back", "ada", "")
    assert begun(book, PLAN, "c", "a").candidate == "c"


def test_of_proposals_at_the_same_moment_one_is_taken(book):
    names = [f"b{number}" for number in range(6)]
    for name in names:
        book.add_bundle(name, "{}", DESCRIPTION)
    start = threading.Barrier(len(names))

    def propose(name):
        start.wait()
        try:
            return book.propose(name, "a", PLAN, "ada", "")
        except InputError:
            return None

    with ThreadPoolExecutor(len(names)) as pool:
        taken = [release for release in pool.map(propose, names) if release is not None]
    assert taken == [book.current()]


def test_a_bundle_that_is_not_known_or_serves_already_is_refused(book):
    book.add_bundle("a", "{}", DESCRIPTION)
    with pytest.raises(InputError, match="there is no bundle b"):
        book.propose("b", "a", PLAN, "ada", "")
    with pytest.raises(InputError, match="bundle a already serves"):
        book.propose("a", "a", PLAN, "ada", "")


def test_who_saw_an_older_state_is_told_so(book):
    release = begun(book, PLAN)
    book.move(release, "advance", "ada", "")
    with pytest.raises(InputError, match="has moved in the meantime: canary 10 %"):
        book.move(release, "advance", "bob", "")


@pytest.mark.promise("Legal duties", "AI Act 14(4)(d), (e): a person can override and stop it")
def test_a_rollback_needs_no_look_at_the_newest_state_and_happens_once(book, engine):
    release = begun(book, PLAN)
    book.move(release, "advance", "ada", "")
    back = book.move(release, "roll_back", "bob", "stop")
    assert book.move(release, "roll_back", "ada", "stop too") == back
    assert [n.body["action"] for n in notices_after(engine, 0)].count("roll_back") == 1


@pytest.mark.promise("Legal duties", "AI Act 12(2)(b), 72: post-market monitoring")
def test_a_tick_counts_what_is_new_and_nothing_twice(book):
    release = begun(book, PLAN)
    book.observe(seen(release, "shadow", GOOD, 3) + seen(release, "serving", BAD, 2))
    book.tick({}, release.since)
    book.observe(seen(release, "shadow", BAD))
    book.tick({}, release.since)
    book.tick({}, release.since)
    evidence = book.view().evidence
    shadow, serving = evidence.tally("shadow"), evidence.tally("serving")
    assert (shadow.of("unsafe").n, shadow.of("unsafe").bad) == (4, 1)
    assert (serving.of("unsafe").n, serving.of("unsafe").bad) == (2, 2)


def test_a_tick_counts_only_its_own_release(book):
    first = begun(book, PLAN, "b", "a")
    book.move(first, "roll_back", "ada", "")
    second = begun(book, PLAN, "c", "a")
    book.observe(seen(first, "shadow", BAD, 5) + seen(second, "shadow", GOOD))
    book.tick({}, second.since)
    assert book.view().evidence.tally("shadow").answers == 1


def test_what_was_counted_or_came_too_late_is_kept_no_longer(book, engine):
    first = begun(book, PLAN, "b", "a")
    book.move(first, "roll_back", "ada", "")
    second = begun(book, PLAN, "c", "a")
    waiting = COUNTED_AT_ONCE + 2
    book.observe(seen(first, "shadow", BAD, 5) + seen(second, "shadow", GOOD, waiting))
    book.tick({}, second.since)
    with reading(engine) as connection:
        assert connection.execute(select(OBSERVATIONS.c.release)).scalars().all() == [second.id] * 2


def test_a_tick_counts_no_more_than_a_short_transaction_holds(book):
    release = begun(book, PLAN)
    book.observe(seen(release, "shadow", GOOD, COUNTED_AT_ONCE + 1))
    book.tick({}, release.since)
    assert book.view().evidence.tally("shadow").answers == COUNTED_AT_ONCE
    book.tick({}, release.since)
    assert book.view().evidence.tally("shadow").answers == COUNTED_AT_ONCE + 1


def test_a_good_candidate_goes_on_by_itself_when_time_and_samples_are_enough(book):
    release = begun(book, PLAN)
    book.observe(seen(release, "shadow", GOOD, 200) + seen(release, "serving", GOOD, 200))
    early, decision = book.tick({}, release.since + 1)
    assert (early.state, decision.action) == ("shadow", "wait")
    late, decision = book.tick({}, release.since + 61)
    assert (late.state, late.percentage, decision.action) == ("canary", 10.0, "advance")
    assert late.since == release.since + 61
    move = book.history(release.id)[-1]
    assert (move.by, move.why) == ("waltzrl", decision.why)
    assert move.decision == decision


@pytest.mark.promise("Legal duties", "AI Act 14(4)(d), (e): a person can override and stop it")
def test_a_person_decides_when_the_plan_or_a_hold_says_so(book):
    release = begun(book, short_plan(10, automatic=False))
    book.observe(seen(release, "shadow", GOOD, 200))
    after, decision = book.tick({}, release.since + 61)
    assert (after.state, decision.action) == ("shadow", "advance")
    book.move(after, "roll_back", "ada", "")
    held = book.move(begun(book, PLAN, "c"), "hold", "ada", "")
    book.observe(seen(held, "shadow", GOOD, 200))
    assert book.tick({}, held.since + 61)[0] == held


@pytest.mark.promise("Legal duties", "AI Act 15(4): feedback loops do not mislead it")
def test_a_bad_candidate_is_rolled_back_by_itself_even_when_it_is_held(book, engine):
    held = book.move(begun(book, PLAN), "hold", "ada", "")
    book.observe(seen(held, "shadow", BAD, 30) + seen(held, "serving", GOOD, 300))
    after, decision = book.tick({}, held.since + 1)
    assert (after.state, decision.action) == ("rolled_back", "roll_back")
    notice = notices_after(engine, 0)[-1].body
    assert (notice["by"], notice["why"]) == ("waltzrl", decision.why)
    assert "unsafe replies" in notice["why"]
    assert book.tick({}, held.since + 2) is None


@pytest.mark.slow
def test_the_curve_has_a_point_for_each_tick_that_counted_and_stays_short(book):
    release = begun(book, PLAN)
    book.tick({}, release.since)
    assert book.view().curve == ()
    for second in range(MOST_POINTS + 5):
        book.observe(seen(release, "shadow", GOOD))
        book.tick({}, release.since + second / 100)
    all_together = [point for point in book.view().curve if point.metric == "all"]
    assert len(all_together) == MOST_POINTS
    assert all_together[0].time == release.since
    assert all_together[-1].time == pytest.approx(release.since + (second / 100))


def test_replicas_in_threads_count_every_observation_once(book, database_url):
    release = begun(book, short_plan(10, seconds=1e9))

    def work(_):
        own = open_database(database_url)
        replica = ReleaseBook(own)
        for _ in range(20):
            replica.observe(seen(release, "shadow", GOOD, 5))
            replica.tick({}, release.since)
        own.dispose()

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, range(3)))
    book.tick({}, release.since)
    shadow = book.view().evidence.tally("shadow")
    assert shadow.answers == shadow.of("unsafe").n == 300


@pytest.mark.slow
def test_replicas_in_processes_count_every_observation_once(book, database_url):
    release = begun(book, short_plan(10, seconds=1e9))
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.starmap(observe_and_tick, [(database_url, release, 50)] * 2)
    book.tick({}, release.since)
    assert book.view().evidence.tally("shadow").answers == 500


def observe_and_tick(url, release, times):
    engine = open_database(url)
    replica = ReleaseBook(engine)
    for _ in range(times):
        replica.observe(seen(release, "shadow", GOOD, 5))
        replica.tick({}, release.since)
    engine.dispose()


def test_a_replica_does_not_wait_for_one_that_counts(postgres_url):
    engine = open_database(postgres_url)
    book = ReleaseBook(engine)
    release = begun(book, PLAN)
    with writing(engine) as connection:
        connection.execute(RELEASES.select().with_for_update())
        assert book.tick({}, release.since) is None
    assert book.tick({}, release.since) is not None
    engine.dispose()


def test_the_point_that_goes_is_the_one_in_the_narrowest_place():
    # Without 1, 2, 3 or 7 the gaps would be 2, 2, 5 and 6 wide; of equals the oldest goes.
    assert least_needed([0, 1, 2, 3, 7, 9]) == 1
    assert least_needed([0, 5, 6, 6.5]) == 2


@given(st.lists(st.floats(0.5, 2), min_size=100, max_size=300))
def test_a_thinned_curve_covers_the_whole_time_evenly(steps):
    times = []
    for time in accumulate(steps):
        times.append(time)
        if len(times) > 20:
            del times[least_needed(times)]
    assert (times[0], times[-1]) == (steps[0], pytest.approx(sum(steps)))
    widest = max(later - sooner for sooner, later in pairwise(times))
    assert widest < 4 * (times[-1] - times[0]) / 19


def by(release, subject, arm="candidate", times=1):
    return [Observation(release=release.id, arm=arm, outcomes=BAD, subject=subject)] * times


def waiting(book):
    """Return how many of the candidate's unsafe outcomes wait to be compared."""
    return len(book.view().evidence.comparison("candidate", "unsafe").candidate)


@pytest.mark.promise(
    "Evidence of a release",
    "Users that differ roll back no candidate that is no worse: each counts once in an arm and "
    "step",
)
def test_a_user_counts_once_in_a_step_whichever_replica_counts(book, database_url):
    release = begun(book, short_plan(10, 50, shadow=False))
    book.observe(by(release, "ada", times=3))
    book.tick({}, release.since)
    other = open_database(database_url)
    replica = ReleaseBook(other)
    replica.observe(by(release, "ada") + by(release, "bob") + by(release, ""))
    replica.tick({}, release.since)
    assert (waiting(book), book.view().evidence.tally("candidate").answers) == (3, 6)
    other.dispose()


@pytest.mark.promise(
    "Evidence of a release",
    "Users that differ roll back no candidate that is no worse: each counts once in an arm and "
    "step",
)
def test_the_next_step_counts_every_user_again_and_the_end_forgets_them(book, engine):
    release = begun(book, short_plan(10, 50, shadow=False))
    book.observe(by(release, "ada", times=2))
    book.tick({}, release.since)
    release = book.move(release, "advance", "ada", "")
    book.observe(by(release, "ada"))
    book.tick({}, release.since)
    assert waiting(book) == 2
    book.move(release, "roll_back", "ada", "")
    with reading(engine) as connection:
        assert connection.execute(select(ANSWERED)).all() == []
