"""A roster that follows releases, on standings made by hand."""

import asyncio
import dataclasses
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.releases_by_hand import Database, bundle, release, request
from waltzrl.errors import InputError, StorageError
from waltzrl.gateway.exchange import Assignment
from waltzrl.gateway.gateway import SingleBundle
from waltzrl.gateway.named_policies import PolicySelector
from waltzrl.gateway.split import PercentageSplit
from waltzrl.operations.online.release_follower import ReleaseFollower
from waltzrl.records import Message, Prompt
from waltzrl.store.notices import Notice


def following(database):
    own = SingleBundle(Assignment(bundle("own")))
    return ReleaseFollower(own, database.ask, database.open, database.told, database.hold)


def looked(database, *, times=1):
    """Return a roster that has looked at the database."""
    releases = following(database)
    for _ in range(times):
        asyncio.run(releases.poll())
    return releases


def test_without_a_release_the_recipe_serves():
    assert looked(Database()).assigned(request("a")) == Assignment(bundle("own"))


def test_what_a_release_brought_to_all_serves_in_the_recipes_place():
    releases = looked(Database(serving="new"))
    assert releases.serving().id == "new"
    assert releases.assigned(request("a")).arm == ""


@pytest.mark.promise("Policies", "A release of a policy concerns its own requests and no others")
def test_a_release_of_a_policy_concerns_its_own_requests_only():
    clinic = dataclasses.replace(bundle("clinic"), policy="clinic")
    own = PolicySelector(SingleBundle(Assignment(bundle("own"))), {"clinic": clinic})
    database = Database(release=replace(release("canary", percentage=100), policy="clinic"))
    releases = ReleaseFollower(own, database.ask, database.open, database.told, database.hold)
    asyncio.run(releases.poll())
    asked = replace(request("a"), policy="clinic")
    assert releases.assigned(asked) == Assignment(bundle("new"), "candidate", "r1")
    assert releases.assigned(request("a")) == Assignment(bundle("own"))
    database.release, database.released = None, {"clinic": "new"}
    asyncio.run(releases.poll())
    assert releases.assigned(asked).bundle.id == "new"
    assert (releases.assigned(request("a")).bundle.id, releases.serving().id) == ("own", "own")


def test_a_canary_serves_its_share_and_names_both_arms():
    releases = looked(Database(release=release("canary", percentage=30)))
    arms = [releases.assigned(request(f"user {n}")) for n in range(400)]
    candidates = [one for one in arms if one.arm == "candidate"]
    assert 80 < len(candidates) < 160
    assert {one.bundle.id for one in candidates} == {"new"}
    assert {(one.bundle.id, one.arm) for one in arms} == {("new", "candidate"), ("own", "serving")}
    assert {one.release for one in arms} == {"r1"}


@given(st.text(min_size=1), st.lists(st.floats(0, 100), min_size=2, max_size=4))
def test_nobody_who_has_the_candidate_loses_it_as_the_share_grows(user, percentages):
    arms = [
        looked(Database(release=release("canary", percentage=share))).assigned(request(user)).arm
        for share in sorted(percentages)
    ]
    assert arms == sorted(arms, key=["serving", "candidate"].index)


def test_a_rollback_is_in_force_at_the_next_look():
    database = Database(release=release("canary", percentage=100))
    releases = looked(database)
    assert releases.assigned(request("a")).bundle.id == "new"
    database.release, database.ended = None, release("rolled_back", percentage=100)
    asyncio.run(releases.poll())
    assert releases.assigned(request("a")) == Assignment(bundle("own"))
    assert (releases.state, releases.percentage) == ("rolled_back", 0)


def test_the_state_follows_a_release_to_its_end():
    database = Database(release=release("canary", percentage=100))
    releases = looked(database)
    database.release, database.ended = None, release("full", percentage=100)
    asyncio.run(releases.poll())
    assert (releases.state, releases.percentage) == ("full", 0)  # it is not open here yet
    database.released = {"": "new"}
    asyncio.run(releases.poll())
    assert (releases.state, releases.percentage) == ("full", 100)
    assert looked(Database()).state == "off"


def test_a_shadow_answers_for_nobody():
    releases = looked(Database(release=release("shadow", percentage=0)))
    assert releases.assigned(request("a")).arm == "serving"
    found, candidate = releases.shadow
    assert (found.id, candidate.id) == ("r1", "new")


def test_while_the_database_is_away_all_stays_as_it_was_and_it_is_said_once(caplog):
    database = Database(release=release("canary", percentage=100))
    releases = looked(database)
    database.away = StorageError("the database is away")
    asyncio.run(releases.poll())
    asyncio.run(releases.poll())
    assert releases.assigned(request("a")).bundle.id == "new"
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.parametrize("broken", [InputError("no weights"), RuntimeError("out of memory")])
def test_a_candidate_that_cannot_be_opened_serves_nobody_until_it_can(caplog, broken):
    database = Database(release=release("canary", percentage=100), broken=broken)
    releases = looked(database)
    assert releases.assigned(request("a")).bundle.id == "own"
    assert str(broken) in caplog.text
    ((held, why),) = database.held
    assert (held, str(broken) in why) == (database.release, True)
    database.broken = None
    asyncio.run(releases.poll())
    assert releases.assigned(request("a")).bundle.id == "new"
    assert len(database.held) == 1


def test_a_held_release_is_not_held_again():
    held = replace(release("canary", percentage=100), held=True)
    database = Database(release=held, broken=InputError("no weights"))
    assert looked(database).assigned(request("a")).bundle.id == "own"
    assert database.held == []


def test_what_serves_is_opened_at_the_next_look_when_the_database_went_away_between():
    notices = [Notice(id=1, time=0.0, kind="release", body={})]
    database = Database(serving="new", notices=notices, broken=StorageError("it is away"))
    releases = looked(database)
    assert (releases.serving().id, database.heard) == ("own", [])
    database.broken = None
    asyncio.run(releases.poll())
    assert (releases.serving().id, database.heard) == ("new", notices)


def test_after_a_mistake_of_ours_a_rollback_is_still_heard_of(caplog):
    database = Database(release=release("canary", percentage=100))
    releases = looked(database)
    database.away = TypeError("a mistake")
    asyncio.run(releases.poll())
    database.away, database.release = None, None
    asyncio.run(releases.poll())
    assert releases.assigned(request("a")).bundle.id == "own"
    assert "TypeError('a mistake')" in caplog.text


def test_a_candidate_that_comes_out_otherwise_is_not_measured(caplog):
    database = Database(release=release("canary", percentage=100), comes_out_as="other")
    assert looked(database).assigned(request("a")).bundle.id == "own"
    assert "comes out as other" in caplog.text
    assert "comes out as another" in database.held[0][1]


def test_what_serves_all_goes_on_though_it_comes_out_otherwise(caplog):
    assert looked(Database(serving="new", comes_out_as="other")).serving().id == "other"
    assert "comes out as other" in caplog.text


def test_each_notice_is_told_once():
    notices = [Notice(id=n, time=0.0, kind="release", body={}) for n in (4, 5)]
    database = Database(notices=notices)
    looked(database, times=3)
    assert database.heard == notices


def test_half_of_the_conversations_have_stage_2_and_more_when_more_shall():
    def split(percentage):
        return PercentageSplit(bundle("first"), bundle("last"), percentage)

    users = [request(f"user {n}") for n in range(400)]
    half = {n for n, user in enumerate(users) if split(50).assigned(user).bundle.id == "last"}
    most = {n for n, user in enumerate(users) if split(80).assigned(user).bundle.id == "last"}
    assert 150 < len(half) < 250
    assert half < most
    assert all(split(100).assigned(user).bundle.id == "last" for user in users)


def test_a_conversation_without_a_name_is_known_by_how_it_began():
    releases = looked(Database(release=release("canary", percentage=50)))
    one, longer = request(""), request("", turns=("hello", "and then?"))
    assert releases.assigned(one) == releases.assigned(longer)


def test_conversations_that_only_have_their_system_message_in_common_are_different_ones():
    def conversation(number):
        system = Message(role="system", content="You are helpful.")
        asked = request("", turns=(f"question {number}",))
        prompt = Prompt(id="wz1", messages=(system, *asked.chat.prompt.messages))
        return replace(asked, chat=replace(asked.chat, prompt=prompt))

    releases = looked(Database(release=release("canary", percentage=50)))
    arms = [releases.assigned(conversation(number)).arm for number in range(400)]
    assert 150 < arms.count("candidate") < 250


@pytest.mark.parametrize("state", ["canary", "shadow"])
def test_the_share_and_state_are_shown(state):
    releases = looked(Database(release=release(state, percentage=30)))
    assert releases.state == state
    assert releases.percentage == (30 if state == "canary" else 0)
    assert replace(release(state, percentage=30)).is_open
