"""`waltzrl backup`: what a gateway keeps is copied, checked, restored and moved."""

import errno
import os
import resource
import shutil
import sqlite3
import time

import pytest
from msgspec import structs

from support.small_logs import exchange as old_exchange
from support.small_logs import fill, open_log, unchanged
from support.small_releases import begun, short_plan
from support.small_runs import run
from waltzrl.errors import StorageError
from waltzrl.operations.compliance.erasure import erase_records
from waltzrl.operations.compliance.subject import RecordsOf, open_places
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.store.database import open_database, reading, writing
from waltzrl.store.dump import check_table, fill_table, write_table
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.memory.opening import open_memory
from waltzrl.store.memory.schemas import EVALUATIONS
from waltzrl.store.memory.settings import MemoryConfig
from waltzrl.store.notices import NOTICES, give_notice, last_notice

FULL = 512 * 1024
"""Bytes of a file, of which the copy of the log's contents needs more."""
NUMBERS = {"large": 1e22, "zero": -0.0, "small": 1e-9, "text": "ümlaut \U0001f600", "none": None}


def exchange(name):
    return structs.replace(old_exchange(name), time=time.time())  # the memory forgets old ones


class Kept:
    """What a gateway keeps: a memory with a release, and an audit log, each with its keys."""

    def __init__(self, folder, url):
        self.folder, self.url = folder, url
        self.settings = [
            *("--set", f"memory.url={url}", "--set", f"memory.subject_key={folder}/memory.key"),
            *("--set", f"audit.folder={folder}/log", "--set", f"audit.key={folder}/audit.key"),
        ]

    def open(self):
        config = MemoryConfig(url=self.url, subject_key=self.folder / "memory.key")
        engine = open_database(self.url)
        return engine, open_memory(config, {}, engine, str)

    def fill(self):
        engine, memory = self.open()
        memory.remember([exchange(f"r{number}") for number in range(3)])
        memory.label("r1", LabelEvent(by="olga", reply="unsafe"))
        memory.store.put(("users",), "numbers", NUMBERS)
        begun(ReleaseBook(engine), short_plan(10, 50))
        engine.dispose()
        with open_log(self.folder, contents=unchanged) as log:
            fill(log, 3)
        return self


@pytest.fixture
def kept(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir()
    return Kept(folder, f"sqlite:///{folder}/memory.db").fill()


def told(capsys):
    printed = capsys.readouterr()
    return printed.out + printed.err


@pytest.mark.promise(
    "Routed tasks",
    "A backup holds memory, releases, audit log and keys of one moment; it is restored whole or "
    "not at all, into SQLite or PostgreSQL, and compared there",
)
@pytest.mark.promise("Requirements", "backup, restore, moving the memory")
def test_what_was_backed_up_is_restored_into_either_database(capsys, kept, tmp_path, database_url):
    saved = tmp_path / "saved"
    assert run("backup", "create", saved, *kept.settings) == 0
    assert "and 5 audit records" in told(capsys)  # two tell that the log began and ended
    assert run("backup", "check", saved) == 0
    other = Kept(tmp_path / "other", database_url)
    assert run("backup", "restore", saved, *other.settings) == 0
    engine, memory = other.open()
    assert sorted(found.id for found in memory.evaluations(limit=9)) == ["r0", "r1", "r2"]
    assert memory.evaluation("r1").label == "unsafe"
    assert memory.store.get(("users",), "numbers").value == NUMBERS
    assert memory.store.search(EVALUATIONS, query="process", limit=9)  # the index of words is there
    assert ReleaseBook(engine).current().candidate == "new"
    before = last_notice(engine)
    with writing(engine) as connection:
        give_notice(connection, "test", {})
    assert last_notice(engine) == before + 1  # numbers go on after those that were restored
    memory.remember([exchange("r3")])
    engine.dispose()
    log = ("audit", "verify", tmp_path / "other/log", "--key", tmp_path / "other/audit.key.pub")
    assert run(*log) == 0
    with open_log(tmp_path / "other") as continued:  # the key signs on
        fill(continued, 1, 3)
    assert run(*log) == 0
    assert "ok: 8 records" in told(capsys)


def test_contents_that_expire_while_their_files_are_copied_are_left_out(kept, tmp_path):
    listed = kept.folder / "log/contents-000000.jsonl"
    listed.symlink_to("deleted")  # a name in the folder behind which there is no file any more
    assert run("backup", "create", tmp_path / "saved", *kept.settings) == 0
    names = {path.name for path in (tmp_path / "saved/audit").iterdir()}
    assert names == {"checkpoints", "decisions-000001.jsonl", "contents-000001.jsonl"}


@pytest.mark.promise(
    "Routed tasks",
    "A backup holds memory, releases, audit log and keys of one moment; it is restored whole or "
    "not at all, into SQLite or PostgreSQL, and compared there",
)
def test_a_restore_into_what_is_not_empty_is_refused_and_changes_nothing(capsys, kept, tmp_path):
    saved = tmp_path / "saved"
    run("backup", "create", saved, *kept.settings)
    assert run("backup", "restore", saved, *kept.settings) == 2
    assert "log is not empty; restore into a new folder" in told(capsys)
    fresh = [*kept.settings, "--set", f"audit.folder={tmp_path}/fresh"]
    assert run("backup", "restore", saved, *fresh) == 2
    assert "is not empty: it has exports" in told(capsys)
    assert not (tmp_path / "fresh").exists()


@pytest.mark.promise(
    "Routed tasks", "An altered backup or log is found, and a full disk leaves no backup"
)
@pytest.mark.parametrize("file", ["tables/items.jsonl", "log", "keys/memory.key"])
def test_an_altered_backup_is_found_and_not_restored(capsys, kept, tmp_path, file):
    saved = tmp_path / "saved"
    run("backup", "create", saved, *kept.settings)
    path = saved / ("audit/decisions-000001.jsonl" if file == "log" else file)
    path.write_bytes(path.read_bytes().replace(b"r1", b"r9") + b"\n")
    other = Kept(tmp_path / "other", f"sqlite:///{tmp_path}/other.db")
    assert run("backup", "check", saved) == run("backup", "restore", saved, *other.settings) == 2
    assert told(capsys).count("was altered; use another backup") == 2
    assert not (tmp_path / "other").exists()
    assert not (tmp_path / "other.db").exists()


def test_a_backup_holds_keys_and_is_for_its_owner_only(kept, tmp_path):
    run("backup", "create", tmp_path / "saved", *kept.settings)
    assert (tmp_path / "saved").stat().st_mode & 0o777 == 0o700
    keys = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "saved/keys").iterdir()}
    names = ("audit.key", "audit.key.digest", "audit.key.pub", "memory.key")
    assert keys == dict.fromkeys(names, 0o600)


@pytest.mark.promise(
    "Routed tasks", "An altered backup or log is found, and a full disk leaves no backup"
)
def test_a_full_disk_leaves_no_backup(capsys, kept, tmp_path):
    with open_log(kept.folder, contents=unchanged) as log:
        fill(log, 800)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert (kept.folder / "memory.db").stat().st_size < FULL
    assert (kept.folder / "log/contents-000001.jsonl").stat().st_size > FULL
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, limits[1]))  # what is written beyond it fails
    try:
        status = run("backup", "create", tmp_path / "saved", *kept.settings)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert status == 2
    assert f"saved: {os.strerror(errno.EFBIG)}; free space there" in told(capsys)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_a_backup_never_replaces_another(capsys, kept, tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    assert run("backup", "create", saved, *kept.settings) == 2
    assert f"{saved} exists; a backup needs a new folder" in told(capsys)


@pytest.mark.promise(
    "Routed tasks", "An altered backup or log is found, and a full disk leaves no backup"
)
def test_a_log_that_was_altered_is_not_backed_up_as_if_it_were_whole(capsys, kept, tmp_path):
    path = kept.folder / "log/decisions-000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"team-a", b"team-b", 1))
    assert run("backup", "create", tmp_path / "saved", *kept.settings) == 2
    assert "does not verify: fault: " in told(capsys)
    assert not (tmp_path / "saved").exists()


def test_without_its_key_nothing_is_backed_up(capsys, kept, tmp_path):
    (kept.folder / "memory.key").unlink()
    assert run("backup", "create", tmp_path / "saved", *kept.settings) == 2
    assert "without its key a restored memory or log is of no use" in told(capsys)


@pytest.mark.promise(
    "Routed tasks",
    "A backup holds memory, releases, audit log and keys of one moment; it is restored whole or "
    "not at all, into SQLite or PostgreSQL, and compared there",
)
def test_a_row_that_differs_after_the_restore_is_found(tmp_path):
    engine = open_database(f"sqlite:///{tmp_path}/notices.db")
    file = tmp_path / "notices.jsonl"
    with writing(engine) as connection:
        NOTICES.create(connection)
        give_notice(connection, "test", {"of": 1})
        assert write_table(connection, NOTICES, file) == 1
        connection.execute(NOTICES.delete())
        fill_table(connection, NOTICES, file)
        check_table(connection, NOTICES, file)
        connection.exec_driver_sql("UPDATE notices SET kind = 'changed'")
        with pytest.raises(StorageError, match=r"row 1 of notices is not what .* says"):
            check_table(connection, NOTICES, file)
    engine.dispose()


@pytest.mark.promise(
    "Routed tasks",
    "A backup holds memory, releases, audit log and keys of one moment; it is restored whole or "
    "not at all, into SQLite or PostgreSQL, and compared there",
)
def test_a_backup_is_of_one_moment_while_the_gateway_writes(kept, tmp_path):
    engine, memory = kept.open()
    with reading(engine) as connection:  # a reader that began earlier
        memory.remember([exchange("later")])
        assert run("backup", "create", tmp_path / "saved", *kept.settings) == 0
        memory.remember([exchange("latest")])
        connection.rollback()
    engine.dispose()
    lines = (tmp_path / "saved/tables/items.jsonl").read_text()
    assert ('"later"' in lines, '"latest"' in lines) == (True, False)


@pytest.mark.promise(
    "Routed tasks",
    "An erasure names the backups that still hold the person, until they are deleted",
)
def test_an_erasure_names_the_backups_that_still_hold_the_person(kept, tmp_path):
    saved, later = tmp_path / "saved", tmp_path / "later"

    def erased(**whose):
        logs = {kept.folder / "log": kept.folder / "audit.key"}
        places = (kept.url, kept.folder / "memory.key", logs)
        with open_places(RecordsOf(**whose), *places) as places:
            return erase_records(places, lambda: None)

    run("backup", "create", saved, *kept.settings)
    assert erased(request="r0").left == (f"{saved}: a backup; delete it",)
    run("backup", "create", later, *kept.settings)  # r0 is not in it any more
    assert erased(request="r0").left == (f"{saved}: a backup; delete it",)
    shutil.rmtree(saved)
    erasure = erased(subject="user-17")
    assert (erasure.left, erasure.missing) == ((f"{later}: a backup; delete it",), ())


def test_a_recipe_that_keeps_nothing_is_refused(capsys, tmp_path):
    assert run("backup", "create", tmp_path / "saved") == 2
    assert "neither a memory nor an audit log" in told(capsys)


def test_a_backup_of_a_newer_table_is_refused(capsys, kept, tmp_path):
    with sqlite3.connect(kept.folder / "memory.db") as connection:
        connection.execute("UPDATE schema_version SET version = 99")
    connection.close()
    assert run("backup", "create", tmp_path / "saved", *kept.settings) == 2
    assert "is of version 99 of the database, and this waltzrl reads versions" in told(capsys)
    assert not (tmp_path / "saved").exists()
