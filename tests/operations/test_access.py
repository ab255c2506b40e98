"""A person's copy: the same records as an erasure finds, to read and one a line."""

import json
import re
import stat
from datetime import UTC, datetime

import pytest
from typer import Typer
from typer.testing import CliRunner

from support.small_erasures import AN_HOUR_AGO, interaction, leave_traces, open_places_of
from support.small_logs import contents_of
from support.small_releases import GOOD, begun, short_plan
from waltzrl.errors import InputError
from waltzrl.operations.commands.access import access as access_command
from waltzrl.operations.compliance.access import write_access
from waltzrl.operations.compliance.erasure import erase_records, find_records
from waltzrl.operations.compliance.subject import RecordsOf
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.state import Observation
from waltzrl.store.audit.contents import erase_contents
from waltzrl.store.audit.keys import digest_under, signing_key
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.notices import notices_after
from waltzrl.store.privacy.redaction import RedactionRules
from waltzrl.store.privacy.scanner import PersonalDataScanner

DAY = 86_400.0


def copied(site, subject="ada", name="copy", **settings):
    with open_places_of(site, subject) as places:
        return write_access(places, site.folder / name, **{"contents_days": 20.0} | settings)


def lines_of(site, name="copy"):
    lines = (site.folder / name / "records.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.promise("Legal duties", "GDPR 15: a person gets a copy")
@pytest.mark.promise(
    "Evidence of a release",
    "A person's copy has exactly what an erasure finds, says when it expires and what an erasure "
    "leaves, and is named by an erasure until it is deleted",
)
def test_a_copy_has_exactly_what_an_erasure_finds_and_nothing_of_others(site):
    leave_traces(site)
    book = ReleaseBook(site.engine)
    release = begun(book, short_plan(10, shadow=False))
    book.observe(
        [
            Observation(release=release.id, arm="serving", outcomes=GOOD, subject=site.digest(name))
            for name in ("ada", "bob")
        ]
    )
    with open_places_of(site, "ada") as places:
        before = find_records(places)
        result = write_access(places, site.folder / "copy", contents_days=20.0)
    lines = lines_of(site)
    erasable = [line for line in lines if line["erasable"]]
    assert before.found["observations"] == 1
    assert result.found == before.found
    assert len(erasable) == before.records == 31
    assert {line["record"].get("subject") for line in erasable} == {
        site.digest("ada"), digest_under(site.log_key, b"ada"),
    }  # fmt: skip
    assert "bob" not in (site.folder / "copy" / "index.html").read_text()
    with open_places_of(site, "ada") as places:
        gone = erase_records(places, lambda: None)
    assert gone.found == result.found
    assert gone.left == (f"{site.folder / 'copy'}: a copy for the person; delete it",)


@pytest.mark.promise("Legal duties", "GDPR 15: a person gets a copy")
@pytest.mark.promise(
    "Evidence of a release",
    "A person's copy has exactly what an erasure finds, says when it expires and what an erasure "
    "leaves, and is named by an erasure until it is deleted",
)
def test_every_record_says_when_it_expires_and_whether_an_erasure_leaves_it(site):
    leave_traces(site)
    result = copied(site, contents_days=20.0)
    days = {}
    for line in lines_of(site):
        expires = line["expires"]
        days.setdefault(line["location"], set()).add(expires and expires[:10])
    in_days = {10: "evaluations", 20: "coaching"}
    page = (site.folder / "copy" / "index.html").read_text()
    for count, name in in_days.items():
        (expires,) = days[f"safety.waltzrl.{name}"]
        assert expires == _day(AN_HOUR_AGO + count * DAY)
        assert f"<td>safety.waltzrl.{name}</td><td>3</td><td>{expires}</td>" in page
    (entry,) = {entry.time[:10] for entry in read_entries(site.log) if entry.decision}
    (expires,) = days[str(site.log)]
    assert expires == _day(_seconds(entry) + 20 * DAY)
    assert days[f"{site.log}: decisions"] == {None}
    assert result.stays == {f"{site.log}: decisions": 3}
    assert "kept until erased" in page


def _day(seconds):
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d")


def _seconds(day):
    return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()


def test_the_page_shows_what_was_said_labelled_and_redacted(sqlite_site):
    site = sqlite_site
    scrub = RedactionRules({}, PersonalDataScanner()).scrub
    memory = SafetyMemory(MemoryStore(site.engine, scrub=scrub), site.digest, {}, {})
    memory.remember([interaction("ada@example.com <b>", 1, AN_HOUR_AGO)])
    (served,) = memory.every_evaluation()
    memory.label(served.id, LabelEvent(by="olga", reply="correct", comment="Well said."))
    with site.open_log():
        pass
    result = copied(site, "ada@example.com <b>")
    page = (site.folder / "copy" / "index.html").read_text()
    assert result.redacted["email"] > 0
    assert "I am [REDACTED:email] &lt;b&gt;, and my grandmother" in page
    assert "<dt>revision</dt><dd>Often, [REDACTED:email]" in page
    assert "olga: reply correct, comment Well said." in page
    assert f"<dt>email</dt><dd>{result.redacted['email']}</dd>" in page
    assert result.stays == {"notices": 1}  # of the label
    assert not re.search(r"<script|<img|src=|https?:", page)


@pytest.mark.promise(
    "Evidence of a release",
    "A person's copy has exactly what an erasure finds, says when it expires and what an erasure "
    "leaves, and is named by an erasure until it is deleted",
)
def test_a_copy_is_noticed_by_everybody_and_by_an_erasure_until_it_is_deleted(sqlite_site):
    leave_traces(sqlite_site)
    result = copied(sqlite_site)
    (notice,) = notices_after(sqlite_site.engine, 0)
    assert (notice.kind, notice.body) == (
        "access", {"subject": sqlite_site.digest("ada"), "records": result.records},
    )  # fmt: skip
    (logged,) = [entry.notice for entry in read_entries(sqlite_site.log) if entry.notice]
    assert logged == {"kind": "access", "subject": result.subject, "records": result.records}
    folder = sqlite_site.folder / "copy"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert (stat.S_IMODE(folder.stat().st_mode), modes["index.html"]) == (0o700, 0o600)
    assert modes["records.jsonl"] == 0o600
    again = copied(sqlite_site, name="second")
    assert again.copies == (f"{folder}: a copy for the person",)
    assert again.found == result.found
    with pytest.raises(InputError, match="exists; a person's copy needs a new folder"):
        copied(sqlite_site)


def test_what_an_erasure_left_is_still_shown(sqlite_site):
    leave_traces(sqlite_site)
    with open_places_of(sqlite_site, "ada") as places:
        erase_records(places, lambda: None)
    result = copied(sqlite_site)
    assert result.found == {}
    assert result.stays == {f"{sqlite_site.log}: decisions": 3, "notices": 1}
    page = (sqlite_site.folder / "copy" / "index.html").read_text()
    assert "Nothing is kept that could be erased." in page


def test_texts_are_shown_where_only_the_contents_beside_the_log_are_left(sqlite_site):
    leave_traces(sqlite_site)
    sqlite_site.memory().store.sweep(AN_HOUR_AGO + 30 * DAY)
    copied(sqlite_site)
    page = (sqlite_site.folder / "copy" / "index.html").read_text()
    assert page.count("<dt>draft</dt><dd>I cannot tell ada that") == 3
    digest = digest_under(sqlite_site.log_key, b"ada")
    assert len(contents_of(sqlite_site.log, digest)) == 3
    erase_contents(sqlite_site.log, signing_key(sqlite_site.log_key), digest)
    copied(sqlite_site, name="second")
    page = (sqlite_site.folder / "second" / "index.html").read_text()
    assert "At an unknown time" in page  # rows of exports


def test_one_request_of_nobody_is_copied_by_its_id(sqlite_site):
    leave_traces(sqlite_site, subjects=("ada", ""))
    whose = RecordsOf(request="-1")
    with open_places_of(sqlite_site, whose) as places:
        assert write_access(places, sqlite_site.folder / "copy", 20.0).found == (
            find_records(places).found
        )
    assert "of the requests -1" in (sqlite_site.folder / "copy" / "index.html").read_text()


def command(*arguments):
    app = Typer()
    app.command()(access_command)
    return CliRunner().invoke(app, [str(one) for one in arguments])


def test_the_command_writes_a_copy_and_says_where_and_of_nobody_it_writes_none(sqlite_site):
    leave_traces(sqlite_site)
    site, out = sqlite_site, sqlite_site.folder / "out"
    given = ("--memory", site.url, "--subject-key", site.key, "--out", out)
    log = ("--audit", f"{site.log}={site.log_key}")
    nobody = command("--subject", "carl", *given, *log)
    assert (nobody.exit_code, out.exists()) == (3, False)
    assert "nothing found: this subject or request is unknown here" in nobody.stdout
    done = command("--subject", "ada", *given, *log)
    assert done.exit_code == 0, done.output
    assert "       6  found in safety.waltzrl.training" in done.stdout
    assert f"       3  in {site.log}: decisions; an erasure leaves it" in done.stdout
    assert f"written: {out / 'index.html'}" in done.stdout
    counted = command("--subject", "ada", *given[:-1], f"{out}-2", "--json")
    assert json.loads(counted.stdout)["copies"] == [f"{out}: a copy for the person"]


def test_without_the_log_s_private_key_nothing_is_written(sqlite_site):
    leave_traces(sqlite_site)
    sqlite_site.log_key.unlink()  # a copy that no log tells of must not be made
    with pytest.raises(InputError, match=r"audit\.key is not the key of the log"):
        copied(sqlite_site)
    assert not (sqlite_site.folder / "copy").exists()
    assert notices_after(sqlite_site.engine, 0) == []
