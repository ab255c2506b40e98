import json
import os
import resource
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from threading import Barrier

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import InputError
from waltzrl.foundation.files import (
    _link_or_copy,
    cache_folder,
    read_or_create,
    toml_value,
    whole_folder,
    write_bytes,
    write_json,
)


@contextmanager
def full_disk(largest_file_bytes):
    """Let no file grow beyond this size, as a disk without space would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_a_written_file_replaces_the_old_one_and_leaves_nothing_beside(tmp_path):
    write_bytes(tmp_path / "table", b"old")
    write_bytes(tmp_path / "table", b"new")
    assert (tmp_path / "table").read_bytes() == b"new"
    assert names(tmp_path) == ["table"]


def test_a_private_file_is_its_owners_only_and_one_that_is_there_keeps_its_mode(tmp_path):
    path = tmp_path / "table"
    write_bytes(path, b"old", private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o640)
    write_bytes(path, b"new")
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_link_stays_a_link_and_the_file_behind_it_is_replaced(tmp_path):
    (tmp_path / "real").mkdir()
    write_bytes(tmp_path / "real" / "table", b"old")
    (tmp_path / "link").symlink_to("real/table")
    write_bytes(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "table").read_bytes() == b"new"
    assert names(tmp_path / "real") == ["table"]


def test_a_file_that_is_replaced_stays_its_owners(tmp_path):
    path = tmp_path / "table"
    write_bytes(path, b"old", private=True)
    # Only root can give a file to somebody else.
    owner = (10001, 10002) if os.geteuid() == 0 else (os.getuid(), os.getgid())
    os.chown(path, *owner)
    write_bytes(path, b"new", private=True)
    found = path.stat()
    assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (*owner, 0o600)


IN_NAMESPACE = """
import ctypes, sys
from pathlib import Path
from waltzrl.foundation.files import write_bytes

# In a new namespace no user is known. Where none may be made, the file is replaced as usual.
ctypes.CDLL(None).unshare(0x10000000)
write_bytes(Path(sys.argv[1]), b"new")
"""


def test_a_file_whose_owner_a_container_does_not_know_is_replaced(tmp_path):
    write_bytes(tmp_path / "table", b"old")
    command = [sys.executable, "-c", IN_NAMESPACE, str(tmp_path / "table")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "table").read_bytes() == b"new"


VALUES = st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.booleans()


@given(VALUES | st.lists(VALUES) | st.floats(allow_nan=False))
def test_a_value_is_the_same_after_toml(value):
    assert tomllib.loads(f"key = {toml_value(value)}\n") == {"key": value}


def test_of_several_that_create_a_file_one_does_and_all_read_the_whole_of_it(tmp_path):
    fresh = [bytes([number]) * 1_000_000 for number in range(8)]
    together = Barrier(8)

    def create(content):
        together.wait()
        return read_or_create(tmp_path / "key", content)

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(create, fresh))
    assert found == [found[0]] * 8
    assert found[0] in fresh
    assert names(tmp_path) == ["key"]
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_a_file_system_without_hard_links_is_enough(tmp_path):
    # There is no hard link from one file system to another either.
    with NamedTemporaryFile(dir="/dev/shm") as source:
        source.write(b"first")
        source.flush()
        _link_or_copy(Path(source.name), tmp_path / "key")
        with pytest.raises(FileExistsError):
            _link_or_copy(Path(source.name), tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == b"first"
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


def test_json_is_sorted_and_ends_with_a_line_break(tmp_path):
    write_json(tmp_path / "a.json", {"b": [1, None], "a": "é"})
    text = (tmp_path / "a.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"a": "é", "b": [1, None]}
    assert text.index('"a": "é"') < text.index('"b"')
    assert text.endswith("}\n")


def test_a_full_disk_is_one_line_and_keeps_the_old_file(tmp_path):
    write_bytes(tmp_path / "table", b"old")
    with full_disk(100), pytest.raises(InputError) as caught:
        write_bytes(tmp_path / "table", b"x" * 101)
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'table'}: File too large; "
        "free space there or choose another folder"
    )
    assert (tmp_path / "table").read_bytes() == b"old"
    assert names(tmp_path) == ["table"]


def test_a_folder_appears_whole(tmp_path):
    with whole_folder(tmp_path / "step") as unfinished:
        (unfinished / "a").touch()
        assert not (tmp_path / "step").exists()
    assert names(tmp_path) == ["step"]
    assert names(tmp_path / "step") == ["a"]


def test_a_folder_that_fails_leaves_the_one_before(tmp_path):
    with whole_folder(tmp_path / "step") as unfinished:
        (unfinished / "first").touch()
    with full_disk(1), pytest.raises(InputError), whole_folder(tmp_path / "step") as unfinished:
        (unfinished / "second").write_bytes(b"xx")
    assert names(tmp_path) == ["step"]
    assert names(tmp_path / "step") == ["first"]


def test_what_a_crash_left_behind_is_swept_away(tmp_path):
    (tmp_path / ".step.part").mkdir()
    (tmp_path / ".step.part" / "half").touch()
    with whole_folder(tmp_path / "step") as unfinished:
        assert names(unfinished) == []


def test_a_link_to_a_folder_stays_and_its_folder_is_replaced(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "folder")
    for number in (1, 2):
        with whole_folder(link) as part:
            (part / str(number)).touch()
        assert link.is_symlink()
        assert [path.name for path in (tmp_path / "folder").iterdir()] == [str(number)]


def test_who_has_no_home_is_told_how_to_name_a_folder(monkeypatch):
    monkeypatch.setenv("HOME", "~")  # as of a user who is in no list of users
    for name in ("WALTZRL_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match="no home folder; name one by WALTZRL_CACHE"):
        cache_folder()
