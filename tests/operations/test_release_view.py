import json

import pytest

from support.small_releases import BAD, GOOD, begun, seen, short_plan
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.view import NOTHING_COUNTED, decision_body
from waltzrl.store.database import open_database


@pytest.fixture
def book(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/memory.db")
    yield ReleaseBook(engine)
    engine.dispose()


def test_without_a_release_all_is_well(book):
    body = decision_body(book.view())
    assert (body["release"], body["state"], body["healthy"]) == (None, "off", True)


def test_before_anything_was_counted_a_release_is_healthy_and_waits(book):
    release = begun(book, short_plan(10))
    body = decision_body(book.view())
    assert (body["release"], body["state"], body["percentage"]) == (release.id, "shadow", 0.0)
    assert (body["action"], body["why"], body["healthy"]) == ("wait", NOTHING_COUNTED, True)


def test_a_release_tells_its_rates_as_json(book):
    release = begun(book, short_plan(10))
    book.observe(seen(release, "shadow", GOOD, 3) + seen(release, "shadow", BAD))
    book.tick({}, release.since)
    body = json.loads(json.dumps(decision_body(book.view())))
    unsafe = body["rates"]["shadow"]["unsafe"]
    assert (unsafe["n"], unsafe["bad"], unsafe["value"]) == (4, 1, 0.25)
    assert body["healthy"]


def test_a_release_that_was_rolled_back_is_not_healthy(book):
    release = begun(book, short_plan(10))
    book.observe(seen(release, "shadow", BAD, 30) + seen(release, "serving", GOOD, 300))
    _, decision = book.tick({}, release.since)
    body = decision_body(book.view())
    assert (body["state"], body["action"], body["healthy"]) == ("rolled_back", "roll_back", False)
    assert body["why"] == decision.why


def test_a_rollback_by_hand_tells_its_own_reason(book):
    release = begun(book, short_plan(10))
    book.observe(seen(release, "shadow", GOOD))
    book.tick({}, release.since)
    book.move(release, "roll_back", "ada", "complaints")
    body = decision_body(book.view())
    assert (body["action"], body["healthy"], body["why"]) == ("roll_back", False, "complaints")
