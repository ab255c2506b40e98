import pytest
from openfeature import api
from openfeature.evaluation_context import EvaluationContext
from openfeature.exception import ErrorCode
from openfeature.flag_evaluation import Reason

from support.small_releases import DESCRIPTION
from waltzrl.operations.release.assignment import serves_candidate
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import load_plan
from waltzrl.store.database import open_database
from waltzrl_integrations.openfeature import ReleaseProvider


@pytest.fixture
def book(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/memory.db")
    yield ReleaseBook(engine)
    engine.dispose()


@pytest.fixture
def client(book):
    """OpenFeature's own client, asking us."""
    api.set_provider(ReleaseProvider(book), "release")
    yield api.get_client("release")
    api.clear_providers()


@pytest.fixture
def release(book):
    """A release at 10 %: the candidate is `new`, and `old` serves."""
    for name in ("old", "new"):
        book.add_bundle(name, "{}", DESCRIPTION, is_base=name == "old")
    release = book.propose("new", "old", load_plan("quick"), "ada", "")
    return book.move(release, "advance", "ada", "")


@pytest.mark.promise("Requirements", "FeatureFlagManager")
def test_conversations_get_the_bundle_that_the_gateways_give_them(client, release):
    for number in range(200):
        name = f"conversation {number}"
        context = EvaluationContext(targeting_key=name)
        bundle = client.get_string_details("waltzrl.bundle", "none", context)
        candidate = client.get_boolean_details("waltzrl.candidate", False, context)
        chosen = serves_candidate(release, name)
        assert (bundle.value, candidate.value) == ("new" if chosen else "old", chosen)
        assert bundle.reason == candidate.reason == Reason.SPLIT


def test_outside_a_split_all_have_the_same(client, book, release):
    book.move(release, "roll_back", "ada", "")
    bundle = client.get_string_details("waltzrl.bundle", "none")
    assert (bundle.value, bundle.reason) == ("old", Reason.STATIC)
    candidate = client.get_boolean_details("waltzrl.candidate", True)
    assert (candidate.value, candidate.reason) == (False, Reason.STATIC)


def test_in_the_shadow_nobody_has_the_candidate(client, book, release):
    book.move(release, "roll_back", "ada", "")
    book.propose("new", "old", load_plan("quick"), "ada", "")
    details = client.get_string_details("waltzrl.bundle", "none")
    assert (details.value, details.reason) == ("old", Reason.STATIC)


def test_before_any_gateway_serves_the_default_counts(client):
    details = client.get_string_details("waltzrl.bundle", "none")
    assert (details.value, details.reason) == ("none", Reason.DEFAULT)


def test_a_split_needs_to_know_the_conversation(client, release):
    details = client.get_string_details("waltzrl.bundle", "none")
    assert details.value == "none"
    assert details.error_code == ErrorCode.TARGETING_KEY_MISSING


def test_other_flags_are_not_found_and_other_types_do_not_fit(client, release):
    asked = {
        client.get_string_details: "x",
        client.get_boolean_details: True,
        client.get_integer_details: 1,
        client.get_float_details: 1.0,
        client.get_object_details: {},
    }
    for ask, default in asked.items():
        details = ask("other.flag", default)
        assert (details.value, details.error_code) == (default, ErrorCode.FLAG_NOT_FOUND)
    for ask in (client.get_integer_details, client.get_boolean_details):
        assert ask("waltzrl.bundle", asked[ask]).error_code == ErrorCode.TYPE_MISMATCH
