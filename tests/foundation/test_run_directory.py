import resource
import signal
import subprocess
import sys

import pytest

from waltzrl.errors import InputError
from waltzrl.foundation.run_directory import RunDirectory

HOLD = """
import sys
from pathlib import Path
from waltzrl.foundation.run_directory import RunDirectory
with RunDirectory(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_makes_its_folder(tmp_path):
    with RunDirectory(tmp_path / "runs" / "demo") as run:
        assert run.path == tmp_path / "runs" / "demo"
        assert run.path.is_dir()


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError) as caught, RunDirectory(tmp_path / "file" / "run"):
        pass
    assert str(caught.value).startswith(f"cannot write {tmp_path / 'file' / 'run'}: Not a dir")
    assert "\n" not in str(caught.value)


def test_a_folder_on_a_full_disk_is_one_line_and_free_later(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(InputError, match=r"cannot write .*: File too large; free space"):
            RunDirectory(tmp_path).__enter__()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with RunDirectory(tmp_path):
        pass


def test_two_runs_cannot_have_one_folder(tmp_path):
    with RunDirectory(tmp_path), pytest.raises(InputError, match=r"in use by process \d+; wait"):
        RunDirectory(tmp_path).__enter__()
    with RunDirectory(tmp_path):
        pass


def test_the_folder_of_a_killed_run_is_free(tmp_path):
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"process {other.pid};"), RunDirectory(tmp_path):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with RunDirectory(tmp_path):
        pass
