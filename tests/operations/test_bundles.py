"""The desk's pages of bundles, and the words on the release card."""

import re

import pytest

from support.small_console import PLAN, Site, collaboration, exchange
from waltzrl.gateway.description import BundleDescription
from waltzrl.store.memory.safety import SafetyMemory

OLD = BundleDescription(
    recipe={"threshold": 0.7, "upstream": {"url": "http://a/v1"}},
    rules={"crime/a": "1"},
    parts={"rules": "rules@1"},
    version="0.1.0",
)
NEW = BundleDescription(
    recipe={"threshold": 0.8, "upstream": {"url": "http://a/v1"}},
    rules={"crime/a": "1", "hate/b": "2", "hate/c": "3", "hate/d": "4"},
    parts={"rules": "rules@2"},
    version="0.1.0",
)
CHANGES = "threshold 0.7 -&gt; 0.8; 3 rules added: hate/b, hate/c, hate/d"


@pytest.fixture
def site(tmp_path):
    site = Site(tmp_path)
    site.book.add_bundle("old", "{}", OLD, is_base=True)
    site.book.add_bundle("new", "{}", NEW, by="ada")
    site.release = site.book.propose("new", "old", PLAN, "ada", "to try it")
    return site


def test_the_release_card_tells_the_difference_in_words(site):
    assert f"Changed: {CHANGES}." in site.log_in("viewer").get("/desk").text


def test_a_bundle_is_shown_with_its_recipe_rules_and_maker_and_when_it_served(site):
    page = site.log_in("viewer").get("/desk/bundles/new").words
    for words in (
        "made by ada",
        "rules 4",
        "rules rules@2",
        "threshold 0.8",
        "upstream.url http://a/v1",
        "hate/d",
        "From old to this one:",
        "threshold 0.7 -&gt; 0.8",
        "candidate propose to canary 5 % ada to try it",
    ):
        assert words in page, words


def test_a_bundle_is_compared_with_any_other(site):
    site.book.add_bundle("third", "{}", NEW)
    browser = site.log_in("viewer")
    page = browser.get("/desk/bundles/new", "against=third").words
    assert "From third to this one: No difference in settings, rules and weights." in page
    page = browser.get("/desk/bundles/old").words  # which serves itself
    assert "There is no other bundle to compare it with." in page
    assert browser.get("/desk/bundles/none").status == 404


def test_the_bundles_are_listed_with_the_one_that_serves(site):
    page = site.log_in("viewer").get("/desk/bundles")
    assert re.search(r"new ada .* old serves a gateway&#39;s own recipe", page.words)
    assert "2, the newest first" in page.words


def test_every_id_of_a_bundle_is_a_link_to_its_page(site):
    site.memory.remember([exchange("wz1", collaboration(), bundle="new")])
    browser = site.log_in("viewer")
    link = '<a href="/desk/bundles/new"><code title="new">new</code></a>'
    for path in ("/desk", "/desk/collaborations/wz1", "/desk/bundles", "/desk/audit"):
        page = browser.get(path)
        assert link in page.text, path
    assert browser.get("/desk").text.count(link) == 2  # the table, and the release's candidate


def test_a_bundle_outlives_what_it_answered(site):
    memory = SafetyMemory(site.memory.store, str, {"evaluations": 1}, {})
    memory.remember([exchange("wz1", collaboration(), bundle="new", subject="ada")])
    assert memory.evaluation("wz1") is not None
    memory.sweep(site.now + 2 * 86_400)
    assert site.memory.evaluation("wz1") is None
    page = site.log_in("viewer").get("/desk/bundles/new").words
    assert "threshold 0.8" in page
