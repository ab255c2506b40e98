"""A person who is erased everywhere, while others, and the log, stay as they were."""

import json
import threading
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from msgspec import structs
from sqlalchemy import Engine, event, select, text
from typer import Typer
from typer.testing import CliRunner

from support.small_erasures import (
    AN_HOUR_AGO,
    EVERYBODY,
    WORDS,
    interaction,
    leave_traces,
    log_decision,
    open_places_of,
)
from support.small_releases import GOOD, begun, short_plan
from waltzrl.errors import InputError, StorageError
from waltzrl.evaluation.collecting.demonstrations import demonstrations
from waltzrl.evaluation.collecting.export import export
from waltzrl.operations.commands.erase import audit_logs
from waltzrl.operations.commands.erase import erase as erase_command
from waltzrl.operations.compliance.erasure import erase_records, find_records
from waltzrl.operations.compliance.exports import read_rows
from waltzrl.operations.compliance.subject import RecordsOf, open_places
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.state import Observation
from waltzrl.operations.release.tables import ANSWERED
from waltzrl.store.audit.contents import expire_contents, read_collaborations
from waltzrl.store.audit.keys import signing_key
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import VerifiedLog, verify
from waltzrl.store.audit.writer import LocalLog
from waltzrl.store.database import reading
from waltzrl.store.memory.erasure import bind_key, note_export
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.notices import notices_after
from waltzrl.store.privacy.digest import key_in


def found(site, subject="ada"):
    with open_places_of(site, subject) as places:
        return find_records(places).found


def erased(site, subject="ada", wait=lambda: None):
    with open_places_of(site, subject) as places:
        return erase_records(places, wait)


def count_items(site):
    with site.engine.connect() as connection:
        return connection.execute(text("SELECT count(*) FROM items")).scalar()


def bytes_of(site):
    """Return what the database's files, exports and contents hold."""
    files = [*site.folder.glob("memory.db*"), *site.log.glob("contents-*")]
    files += [*site.folder.glob("samples.*"), *site.folder.glob("prompts.*")]
    return {path.name: path.read_bytes() for path in files}


@pytest.mark.promise(
    "Legal duties", "GDPR 17: a person is erased, with what reviewers wrote of them"
)
@pytest.mark.promise("Requirements", "compliance: personal data, audit trail, erasure")
def test_a_person_is_gone_from_memory_exports_and_contents_and_others_are_not(site):
    exports = leave_traces(site)
    before = found(site, "bob")
    gone = erased(site)
    assert gone.left == ()
    assert gone.missing == ()
    kinds = {str(path): 3 * (2 if path.stem == "samples" else 1) for path in exports}
    assert gone.found == {
        "safety.waltzrl.evaluations": 3,
        "safety.waltzrl.coaching": 3,
        "safety.waltzrl.training": 6,
        str(site.log): 3,
        **kinds,
    }
    assert found(site) == {}
    assert found(site, "bob") == before
    assert count_items(site) == 12
    assert {row["subject"] for path in exports for row in read_rows(path)} == {site.digest("bob")}
    assert {said.prompt.id[:3] for _, said in read_collaborations(site.log)} == {"bob"}


@pytest.mark.promise("Evidence of a release", "A release keeps no digest of an erased user")
def test_a_release_forgets_who_was_erased(site):
    leave_traces(site)
    book = ReleaseBook(site.engine)
    release = begun(book, short_plan(10, shadow=False))
    for subject in (site.digest("ada"), site.digest("bob")):
        book.observe(
            [Observation(release=release.id, arm="serving", outcomes=GOOD, subject=subject)]
        )
    book.tick({}, release.since)
    assert erased(site).found["answered"] == 1
    with reading(site.engine) as connection:
        left = connection.execute(select(ANSWERED.c.subject)).scalars().all()
    assert left == [site.digest("bob")]


@pytest.mark.promise("Legal duties", "GDPR 17: an erasure is verified")
def test_no_byte_of_what_a_person_said_is_left_in_any_file(sqlite_site):
    site = sqlite_site
    leave_traces(site)
    planted = b"I am ada"
    there = {name for name, data in bytes_of(site).items() if planted in data}
    assert {"memory.db-wal", "contents-000001.jsonl", "samples.jsonl", "prompts.json"} <= there
    assert "memory.db" in {name for name, data in bytes_of(site).items()}
    assert erased(site).left == ()
    for name, data in bytes_of(site).items():
        assert planted not in data, name
        assert b"i am ada" not in data, name
        assert b"tell ada" not in data, name
    assert any(b"I am bob" in data for data in bytes_of(site).values())


OCELOT = "the grandmother of ada called the ocelot back at noon"


@pytest.mark.promise(
    "Legal duties", "GDPR 17: a person is erased, with what reviewers wrote of them"
)
@pytest.mark.promise(
    "Labels",
    "Comments and corrected replies are scrubbed before they are stored and when they are "
    "exported, and erased with the user",
)
@pytest.mark.parametrize(
    "whose", ["ada", RecordsOf(request="ada-0"), RecordsOf(words=OCELOT)], ids=str
)
def test_what_people_wrote_of_a_person_is_erased_with_the_person(sqlite_site, whose):
    site, told = sqlite_site, OCELOT
    leave_traces(site)
    memory = site.memory()
    for field in ("comment", "correction"):
        memory.label("ada-0", LabelEvent(by="olga", reply="correct", **{field: f"{told}, {field}"}))
    memory.label("bob-0", LabelEvent(by="olga", correction="bob may keep his word"))
    path = site.folder / "prompts.jsonl"
    note_export(site.engine, path)
    export(path, demonstrations(memory.every_evaluation(), EVERYBODY))
    assert {name for name, data in bytes_of(site).items() if told.encode() in data} >= {
        "memory.db-wal", "prompts.jsonl",
    }  # fmt: skip
    gone = erased(site, whose)
    assert (gone.left, gone.found[str(path)]) == ((), 1)
    for name, data in bytes_of(site).items():
        assert told.encode() not in data, name
    assert b"bob may keep his word" in path.read_bytes()
    kinds = [notice.kind for notice in notices_after(site.engine, 0)]
    assert kinds == ["label", "label", "label", "erasure"]


def test_postgres_files_hold_nothing_of_a_person_either(postgres_site):
    site = postgres_site
    leave_traces(site)
    with site.engine.connect() as connection:
        folder = Path(connection.execute(text("SHOW data_directory")).scalar())
        connection.execute(text("CHECKPOINT"))
        path = text("SELECT 'base/' || oid FROM pg_database WHERE datname = current_database()")
        files = folder / connection.execute(path).scalar()
    assert any(b"I am ada" in file.read_bytes() for file in files.iterdir())
    with site.engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE items"))  # as PostgreSQL does by itself
    assert erased(site).left == ()
    with site.engine.connect() as connection:
        connection.execute(text("CHECKPOINT"))
    for file in files.iterdir():
        assert b"i am ada" not in file.read_bytes().lower()
    assert any(b"I am bob" in file.read_bytes() for file in files.iterdir())


def test_a_transaction_that_begins_meanwhile_keeps_no_statistics_of_a_person(postgres_site):
    leave_traces(postgres_site)
    engine = postgres_site.engine
    with engine.execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
        connection.execute(text("ANALYZE items"))
        read = text("SELECT 'base/' || oid FROM pg_database WHERE datname = current_database()")
        files = Path(connection.execute(text("SHOW data_directory")).scalar()) / (
            connection.execute(read).scalar()
        )
    reader = engine.execution_options(isolation_level="REPEATABLE READ").connect()

    def meanwhile(_connection, _cursor, statement, *_):
        if statement.startswith("VACUUM (FULL, ANALYZE)"):
            reader.execute(text("SELECT 1"))  # sees the statistics as they are now
        elif "pg_stat_activity" in statement:
            reader.rollback()  # while it is waited for

    event.listen(Engine, "before_cursor_execute", meanwhile)
    try:
        assert erased(postgres_site).left == ()
    finally:
        event.remove(Engine, "before_cursor_execute", meanwhile)
        reader.close()
    with engine.connect() as connection:
        connection.execute(text("CHECKPOINT"))
    assert not any(b"i am ada" in file.read_bytes().lower() for file in files.iterdir())


@contextmanager
def refused_because_of(pid):
    """Wait shortly, because other tests use the same server, and wait for its transactions too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("waltzrl.store.memory.erasure.SNAPSHOT_CHECKS", 2)
        with pytest.raises(StorageError, match=rf"older transaction\(s\) .*\(pid .*\b{pid}\b"):
            yield


def test_a_transaction_that_still_sees_the_erased_rows_is_named_and_the_next_erasure_completes(
    postgres_site,
):
    leave_traces(postgres_site)
    engine = postgres_site.engine.execution_options(isolation_level="REPEATABLE READ")
    with engine.connect() as reader:
        pid = reader.execute(text("SELECT pg_backend_pid() FROM items")).scalars().first()
        with refused_because_of(pid):
            erased(postgres_site)
    assert erased(postgres_site).left == ()


def test_a_transaction_of_another_database_that_holds_the_erased_rows_is_named(
    postgres_site, postgres_server
):
    leave_traces(postgres_site)
    with psycopg.connect(postgres_server) as other:
        (pid,) = other.execute("SELECT pg_backend_pid() FROM pg_current_xact_id()").fetchone()
        with refused_because_of(pid):
            erased(postgres_site)
    assert erased(postgres_site).left == ()


@pytest.mark.promise("Legal duties", "GDPR 17: an erasure is verified")
def test_the_log_still_verifies_and_tells_of_the_erasure(sqlite_site):
    leave_traces(sqlite_site)
    decisions = (sqlite_site.log / "decisions-000001.jsonl").read_bytes()
    gone = erased(sqlite_site)
    grown = (sqlite_site.log / "decisions-000001.jsonl").read_bytes()
    assert grown.startswith(decisions)
    assert f'"records":{gone.records}}}'.encode() in grown
    (entry,) = [entry for entry in read_entries(sqlite_site.log) if entry.event == "notice"]
    assert entry.notice == {"kind": "erasure", "subject": gone.subject, "records": gone.records}
    with sqlite_site.open_log() as log:
        assert isinstance(verify(sqlite_site.log, log.public_key), VerifiedLog)


def test_a_running_gateway_hears_of_the_erasure_by_a_notice(sqlite_site):
    leave_traces(sqlite_site)
    with sqlite_site.open_log() as log:
        gone = erased(sqlite_site)
        log.flush()
        assert [e.event for e in read_entries(sqlite_site.log) if e.event == "notice"] == []
    (notice,) = notices_after(sqlite_site.engine, 0)
    assert notice.kind == "erasure"
    assert notice.body == {
        "subject": gone.subject, "memory": 12, "contents": 3, "exports": 15,
    }  # fmt: skip
    assert isinstance(notice.body["memory"], int)
    assert notice.time > 0


def test_a_gateway_that_has_copies_of_the_keys_is_known_to_run(sqlite_site):
    leave_traces(sqlite_site)
    copy = sqlite_site.folder / "copies" / "audit.key"
    copy.parent.mkdir()
    for name in ("audit.key", "audit.key.digest"):
        copy.with_name(name).write_bytes(sqlite_site.log_key.with_name(name).read_bytes())
    given = (RecordsOf(subject="ada"), sqlite_site.url, sqlite_site.key, {sqlite_site.log: copy})
    with sqlite_site.open_log(), open_places(*given) as places:
        assert not erase_records(places, wait=lambda: None).left


@contextmanager
def told_on_and_on(site, log, memory):
    """Let a gateway's log and its recorder's memory grow by two people meanwhile."""
    done = threading.Event()

    def tell():
        number = 100
        while not done.is_set():
            memory.remember([interaction("bob", number, AN_HOUR_AGO)])
            log_decision(log, "bob", number)
            number += 1
            done.wait(0.005)  # SQLite lets nobody in between writes without a pause

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def test_a_person_is_erased_under_load(site):
    leave_traces(site)
    memory = site.memory()
    with site.open_log() as log:
        with told_on_and_on(site, log, memory):
            gone = erased(site)
        key = log.public_key
    assert (gone.left, gone.records) == ((), 30)
    assert found(site) == {}
    bobs = {one.id for one in memory.every_evaluation()}
    assert {"bob-0", "bob-1", "bob-2", "bob-100"} <= bobs
    assert {said.prompt.id for _, said in read_collaborations(site.log)} == bobs
    assert isinstance(verify(site.log, key), VerifiedLog)


@pytest.mark.promise("Legal duties", "GDPR 17: an erasure includes pending writes")
def test_what_was_long_on_its_way_is_not_remembered_any_more(site):
    leave_traces(site)
    memory = site.memory()
    erased(site)
    late = memory.remember([interaction("ada", 7, AN_HOUR_AGO), interaction("bob", 7, AN_HOUR_AGO)])
    assert [one.id for one in late] == ["ada-7", "bob-7"]
    assert memory.evaluation("ada-7") is None
    assert memory.evaluation("bob-7") is not None
    assert found(site) == {}
    memory.remember([interaction("ada", 8, AN_HOUR_AGO + 7200)])  # she came back
    assert set(found(site)) == {
        "safety.waltzrl.evaluations", "safety.waltzrl.coaching",
    }  # fmt: skip


@pytest.mark.promise("Legal duties", "GDPR 17: an erasure includes pending writes")
def test_what_is_written_while_an_erasure_waits_is_erased_too(sqlite_site):
    leave_traces(sqlite_site)
    with sqlite_site.open_log() as log:

        def write():
            log_decision(log, "ada", 9)
            log.flush()

        gone = erased(sqlite_site, wait=write)
    assert gone.found[str(sqlite_site.log)] == 4
    assert gone.left == ()
    assert len(notices_after(sqlite_site.engine, 0)) == 2


def test_erasing_twice_is_fine(sqlite_site):
    leave_traces(sqlite_site)
    assert erased(sqlite_site).records == 30
    again = erased(sqlite_site)
    assert (again.records, again.left) == (0, ())


@pytest.mark.promise(
    "Legal duties", "GDPR 17: a person is erased, with what reviewers wrote of them"
)
@pytest.mark.promise(
    "Personal data",
    "A request that names nobody is erased by its id, or by words of the person, and an unknown "
    "one is told as such",
)
def test_one_request_is_erased_by_its_id_wherever_it_is(site):
    leave_traces(site, subjects=("ada", ""))
    memory, whose = site.memory(), RecordsOf(request="-1")  # nobody's
    gone = erased(site, whose)
    assert (gone.subject, gone.requests, gone.left) == ("", ("-1",), ())
    assert gone.records == 10  # an evaluation, a session, samples of two rounds, contents, exports
    assert {one.id for one in memory.every_evaluation()} == {"-0", "-2", "ada-0", "ada-1", "ada-2"}
    assert {said.prompt.id for _, said in read_collaborations(site.log)} == {
        "-0", "-2", "ada-0", "ada-1", "ada-2",
    }  # fmt: skip
    assert found(site, whose) == {}
    (notice,) = notices_after(site.engine, 0)
    assert (notice.body["requests"], "subject" in notice.body) == (1, False)


@pytest.mark.promise(
    "Personal data",
    "A request that names nobody is erased by its id, or by words of the person, and an unknown "
    "one is told as such",
)
def test_other_choices_and_the_clients_own_id_belong_to_a_request(sqlite_site):
    memory = sqlite_site.memory()
    served = interaction("ada", 1, AN_HOUR_AGO)
    for name in ("wz1", "wz1/2", "wz1/shadow", "wz12"):
        client_id = "" if name == "wz12" else "order:17"
        memory.remember([structs.replace(served, id=name, client_request_id=client_id)])
    with sqlite_site.open_log():
        pass
    gone = erased(sqlite_site, RecordsOf(request="order:17"))
    assert (gone.requests, gone.left) == (("order:17", "wz1"), ())
    assert [one.id for one in memory.every_evaluation()] == ["wz12"]


@pytest.mark.promise(
    "Legal duties", "GDPR 17: a person is erased, with what reviewers wrote of them"
)
@pytest.mark.promise(
    "Personal data",
    "A request that names nobody is erased by its id, or by words of the person, and an unknown "
    "one is told as such",
)
def test_who_quotes_what_was_said_is_erased_without_a_name(site):
    leave_traces(site)
    whose = RecordsOf(words="I am ADA and my grandmother's ocelot sings")
    gone = erased(site, whose)
    assert (gone.requests, gone.left) == (("ada-0", "ada-1", "ada-2"), ())
    assert gone.records == 30
    assert {one.id for one in site.memory().every_evaluation()} == {"bob-0", "bob-1", "bob-2"}
    assert found(site, whose) == {}


def test_personal_data_in_a_quotation_is_not_looked_for(sqlite_site):
    leave_traces(sqlite_site)
    words = "I am ada, and my grandmother's ocelot ada@example.com sings at dawn"
    assert sum(found(sqlite_site, RecordsOf(words=words)).values()) == 30


def test_an_export_that_was_moved_is_told(sqlite_site):
    moved, *_ = leave_traces(sqlite_site)
    moved.rename(moved.with_name("elsewhere.jsonl"))
    gone = erased(sqlite_site)
    assert (gone.missing, gone.left) == ((str(moved),), ())


def test_a_damaged_export_stops_an_erasure_before_it_begins(sqlite_site):
    damaged, *_ = leave_traces(sqlite_site)
    damaged.write_text("{\n")
    before = count_items(sqlite_site)
    with pytest.raises(InputError, match=r"samples\.jsonl:1:2: not JSON"):
        erased(sqlite_site)
    assert count_items(sqlite_site) == before


def test_words_that_are_left_in_bytes_are_found_and_fail_the_proof(sqlite_site):
    leave_traces(sqlite_site)
    with (sqlite_site.log / "contents-000001.jsonl").open("ab") as file:
        file.write(f'{{"id":"torn","text":"I am ada, and {WORDS}: how often, 1 tim'.encode())
    (left,) = erased(sqlite_site).left
    assert left == f"{sqlite_site.log}/contents-000001.jsonl: words of the subject in its bytes"


def test_words_that_others_said_too_prove_nothing(sqlite_site):
    memory = sqlite_site.memory()
    hers = interaction("ada", 1, AN_HOUR_AGO)
    memory.remember([hers, structs.replace(hers, id="bob-1", subject="bob")])
    with sqlite_site.open_log():
        pass
    assert erased(sqlite_site).left == ()
    assert b"I am ada" in bytes_of(sqlite_site)["memory.db"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"whose": RecordsOf()}, "got nobody to look for; give the client's own name"),
        ({"whose": RecordsOf(subject="ada", request="1")}, "got subject and request to look for"),
        ({"whose": RecordsOf(words="I am ada")}, "got too few words to tell a person by: 'I am"),
        ({"subject_key": Path("nowhere")}, "nowhere is missing; without the memory's key"),
        ({"url": "sqlite:///nowhere.db"}, r"nowhere\.db does not exist"),
        ({"logs": {Path("nowhere"): None}}, "nowhere holds no audit log"),
    ],
)
def test_what_is_not_there_is_named_and_nothing_is_made(
    sqlite_site, wrong, message, monkeypatch, tmp_path
):
    leave_traces(sqlite_site)
    monkeypatch.chdir(tmp_path)
    given = {
        "whose": RecordsOf(subject="ada"),
        "url": sqlite_site.url,
        "subject_key": sqlite_site.key,
        "logs": {},
    } | wrong
    with pytest.raises(InputError, match=message), open_places(**given):
        pass
    assert not list(tmp_path.glob("nowhere*"))


def test_a_log_without_its_keys_is_named(sqlite_site):
    leave_traces(sqlite_site)
    given = (
        RecordsOf(subject="ada"),
        sqlite_site.url,
        sqlite_site.key,
        {sqlite_site.log: Path("other.key")},
    )
    with (
        pytest.raises(InputError, match=r"other\.key is not the key of .*give its key"),
        open_places(*given),
    ):
        pass


def test_the_key_of_another_log_finds_nobody_and_is_refused(sqlite_site):
    leave_traces(sqlite_site)
    other = sqlite_site.folder / "other.key"
    LocalLog.open(
        sqlite_site.folder / "other", key=other, settings=LogSettings(on_failure="serve")
    ).close()
    given = (RecordsOf(subject="ada"), sqlite_site.url, sqlite_site.key, {sqlite_site.log: other})
    with (
        pytest.raises(InputError, match=r"other\.key is not the key of .*the log is"),
        open_places(*given),
    ):
        pass


def test_the_key_of_another_memory_finds_nobody_and_is_refused(site):
    leave_traces(site)
    other = site.folder / "other.key"
    bind_key(site.engine, site.digest(""), site.key)
    key_in(other)
    given = (RecordsOf(subject="ada"), site.url, other, {})
    with (
        pytest.raises(InputError, match=r"other\.key is not the key under which"),
        open_places(*given),
    ):
        pass
    assert found(site)


@pytest.mark.promise("Legal duties", "GDPR 5(1)(e): storage limitation")
def test_retention_deletes_rows_and_contents_that_are_too_old(site):
    leave_traces(site)
    memory = site.memory()
    store, day = memory.store, 86_400.0
    assert store.sweep(AN_HOUR_AGO + 10 * day - 1) == 0
    assert store.sweep(AN_HOUR_AGO + 11 * day) == 6  # evaluations
    assert expire_contents(site.log, signing_key(site.log_key), AN_HOUR_AGO - 1) == 0
    assert store.sweep(AN_HOUR_AGO + 21 * day) == 6
    assert expire_contents(site.log, signing_key(site.log_key), AN_HOUR_AGO + 20 * day) == 6
    assert list(read_collaborations(site.log)) == []
    assert list(memory.every_evaluation()) == []


def command(*arguments):
    app = Typer()
    app.command()(erase_command)
    return CliRunner().invoke(app, [str(one) for one in arguments])


@pytest.mark.promise(
    "Personal data",
    "A request that names nobody is erased by its id, or by words of the person, and an unknown "
    "one is told as such",
)
def test_the_command_counts_asks_erases_and_looks_again(sqlite_site):
    leave_traces(sqlite_site)
    given = ("--subject", "ada", "--memory", sqlite_site.url, "--subject-key", sqlite_site.key)
    log = ("--audit", f"{sqlite_site.log}={sqlite_site.log.with_name('audit.key')}")
    counted = command(*given, *log, "--dry-run", "--json")
    assert (counted.exit_code, json.loads(counted.stdout)["found"][str(sqlite_site.log)]) == (0, 3)
    unsure = command(*given, *log)
    assert unsure.exit_code == 1
    assert "Erase all 30 records for good?" in unsure.stderr
    assert sum(found(sqlite_site).values()) == 30
    done = command(*given, *log, "--yes")
    assert done.exit_code == 0
    assert f"3  erased in {sqlite_site.log}" in done.stdout
    assert "checked again: nothing is left" in done.stdout
    nobody = command(*given, "--dry-run")
    assert nobody.exit_code == 3
    assert "nothing found: this subject, request or quotation is unknown" in nobody.stdout
    unknown = command(*given, "--yes")
    assert unknown.exit_code == 3
    assert "nothing found: this subject, request or quotation is unknown" in unknown.stdout
    assert "no --audit was given" in unknown.stdout
    assert "checked again" not in unknown.stdout


def test_the_command_fails_when_something_is_left(sqlite_site):
    leave_traces(sqlite_site)
    with (sqlite_site.log / "contents-000001.jsonl").open("ab") as file:
        file.write(f'{{"id":"torn","text":"I am ada, and {WORDS}: how often, 1 tim'.encode())
    given = ("--subject", "ada", "--memory", sqlite_site.url, "--subject-key", sqlite_site.key)
    log = ("--audit", f"{sqlite_site.log}={sqlite_site.log.with_name('audit.key')}")
    done = command(*given, *log, "--yes")
    assert done.exit_code == 1
    assert "STILL PRESENT" in done.stdout


def test_a_log_may_lie_in_a_folder_with_an_equals_sign(tmp_path):
    log = tmp_path / "env=prod" / "audit"
    log.mkdir(parents=True)
    assert audit_logs([str(log)]) == {log: None}
    assert audit_logs([f"{tmp_path}=key"]) == {tmp_path: Path("key")}
