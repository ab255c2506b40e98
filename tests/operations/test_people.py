"""The people page: a person is found by name, by a role that may, and everybody is told."""

import pytest

from support.small_console import Site, collaboration, exchange
from waltzrl.store.notices import notices_after
from waltzrl.store.privacy.digest import subject_digest

DIGEST = subject_digest(b"k" * 32)


@pytest.fixture
def site(tmp_path, sqlite_url):
    yield from opened(tmp_path, sqlite_url)


@pytest.fixture
def either_site(tmp_path, database_url):
    yield from opened(tmp_path, database_url)


def opened(folder, url):
    """Give a console whose memory keeps one exchange of ada."""
    site = Site(folder, url, digest=DIGEST)
    site.memory.remember([exchange("wz1", collaboration("How do I bake bread?"), subject="ada")])
    yield site
    site.memory.store.engine.dispose()


@pytest.mark.promise("Legal duties", "GDPR 15: a person is found by name")
@pytest.mark.promise(
    "Evidence of a release",
    "Only operators find a person by name at the desk, and every audit log tells who looked",
)
def test_an_operator_finds_a_person_by_name_and_the_audit_log_tells_who_looked(either_site):
    site = either_site
    browser = site.log_in("operator")
    page = browser.post("/desk/people", name="ada").text
    assert DIGEST("ada") in page
    assert "safety.waltzrl.evaluations" in page
    path = f"/desk/collaborations?subject={DIGEST('ada')}"
    assert f'href="{path}"' in page
    assert "How do I bake bread?" in browser.get(*path.split("?")).text
    (notice,) = notices_after(site.memory.store.engine, 0)
    assert (notice.kind, notice.body) == (
        "person_search",
        {"by": "operator", "subject": DIGEST("ada"), "records": 1},
    )


def test_a_name_of_nobody_finds_nothing_and_is_written_down_too(site):
    page = site.log_in("operator").post("/desk/people", name="<b>carl").text
    assert "Nothing is kept under this name" in page
    assert "carl" not in page
    (notice,) = notices_after(site.memory.store.engine, 0)
    assert notice.body["records"] == 0


@pytest.mark.promise(
    "Evidence of a release",
    "Only operators find a person by name at the desk, and every audit log tells who looked",
)
@pytest.mark.parametrize("role", ["viewer", "annotator", "reviewer"])
def test_other_roles_are_told_that_they_may_not(site, role):
    browser = site.log_in(role)
    assert "needs the role operator" in browser.get("/desk/people").text
    assert browser.post("/desk/people", name="ada").status == 403
    assert notices_after(site.memory.store.engine, 0) == []


@pytest.mark.promise(
    "Evidence of a release",
    "Only operators find a person by name at the desk, and every audit log tells who looked",
)
def test_an_operator_finds_the_entries_of_a_person_in_the_audit_log_by_name(site):
    browser = site.log_in("operator")
    assert "Find by name" in browser.get("/desk/audit").words
    reply = browser.post("/desk/audit/person", name="ada")
    address = reply.headers["location"]
    assert (reply.status, address) == (303, f"/desk/audit?subject={site.audit.digest('ada')}")
    assert site.audit.digest("ada") != DIGEST("ada")
    page = browser.get(*address.split("?")).text
    assert ("record=wz1" in page, "record=wz2" in page) == (True, False)
    (notice,) = notices_after(site.memory.store.engine, 0)
    assert notice.body == {"by": "operator", "subject": DIGEST("ada"), "records": 1}
    nobody = browser.post("/desk/audit/person", name="carl").headers["location"]
    assert "No entry matches." in browser.get(*nobody.split("?")).words


def test_a_log_whose_key_cannot_be_read_says_so(site, tmp_path):
    (tmp_path / "audit.key.digest").unlink()
    reply = site.log_in("operator").post("/desk/audit/person", name="ada")
    assert (reply.status, "the log knows a subject by a digest only" in reply.words) == (409, True)
    assert notices_after(site.memory.store.engine, 0) == []


@pytest.mark.promise(
    "Evidence of a release",
    "Only operators find a person by name at the desk, and every audit log tells who looked",
)
@pytest.mark.parametrize("role", ["viewer", "annotator", "reviewer"])
def test_other_roles_search_the_audit_log_by_pseudonym_only(site, role):
    browser = site.log_in(role)
    page = browser.get("/desk/audit")
    assert "Find by name" not in page.words
    assert "user (pseudonym)" in page.words
    assert browser.post("/desk/audit/person", name="ada").status == 403
    assert notices_after(site.memory.store.engine, 0) == []
