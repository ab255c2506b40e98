"""A disk without room: a real file system of 1 MB, or a limit on the size of files."""

import logging
import os
import resource
import signal
import subprocess
import time

import pytest

from support.small_logs import fill, log_decision, open_log, unchanged
from support.timing import wait_until
from waltzrl.errors import AuditError
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import VerifiedLog, verify


class TinyDisk:
    """A file system of its own; only root may mount one."""

    def __init__(self, folder):
        self.folder = folder
        self._ballast = folder / "ballast"

    def fill(self):
        with self._ballast.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def free(self):
        self._ballast.unlink(missing_ok=True)


class ShortFiles:
    """For others than root: no file of this process may grow."""

    def __init__(self, folder):
        self.folder = folder
        self._soft, self._hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, self._hard))

    def free(self):
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._soft, self._hard))


@pytest.fixture
def disk(tmp_path):
    """A folder whose disk can be filled and freed; the log's keys lie elsewhere."""
    folder = tmp_path / "disk"
    (folder / "log").mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder / "log")]
    mounted = os.geteuid() == 0 and not subprocess.run(mount, check=False).returncode
    disk = TinyDisk(folder / "log") if mounted else ShortFiles(folder / "log")
    yield disk
    disk.free()
    if mounted:
        subprocess.run(["umount", str(folder / "log")], check=True)


def decisions(disk):
    return [e.decision.id for e in read_entries(disk.folder) if e.decision is not None]


def fill_until_failed(log):
    """Append until the log notices that the disk is full; return the number of the next record."""
    number = 0
    while log.failed is None:
        fill(log, 1, start=number)
        number += 1
        time.sleep(0.002)
    return number


def test_a_log_that_must_not_miss_a_decision_refuses_while_the_disk_is_full(disk, caplog):
    with open_log(disk.folder.parent, on_failure="refuse") as log:
        log.flush()
        log.ready()
        disk.fill()
        accepted = fill_until_failed(log)
        with pytest.raises(AuditError, match="cannot be written"):
            log.ready()
        with pytest.raises(AuditError, match="cannot be written"):
            log_decision(log, "refused")
        with pytest.raises(AuditError, match="cannot be written"):
            log.flush()
        time.sleep(0.05)
        assert len([r for r in caplog.records if r.levelno == logging.ERROR]) == 1
        disk.free()
        wait_until(lambda: log.failed is None)
        log.ready()
        fill(log, 1, start=accepted)
    assert decisions(disk) == [f"r{number}" for number in range(accepted + 1)]
    assert log.unaudited == 0
    assert isinstance(verify(disk.folder, log.public_key), VerifiedLog)


def test_a_log_that_may_miss_decisions_counts_them_and_tells_the_gap(disk):
    with open_log(
        disk.folder.parent, on_failure="serve", queue_records=10, contents=unchanged
    ) as log:
        disk.fill()
        before = fill_until_failed(log)
        fill(log, 25, start=before)
        log.ready()
        missing = log.unaudited
        assert missing >= 15
        disk.free()
        wait_until(lambda: log.failed is None)
        log.flush()
        assert [e.unaudited for e in read_entries(disk.folder) if e.event == "gap"] == [missing]
        fill(log, 1, start=before + 25)
    kept = [f"r{number}" for number in range(before + 25 - missing)]
    assert decisions(disk) == [*kept, f"r{before + 25}"]
    assert isinstance(verify(disk.folder, log.public_key), VerifiedLog)


def test_a_disk_that_stays_full_does_not_hold_up_the_end_but_is_told(disk):
    log = open_log(disk.folder.parent)
    disk.fill()
    accepted = fill_until_failed(log)
    with pytest.raises(AuditError, match="entries of the audit log are lost") as told:
        log.close()
    disk.free()
    assert int(str(told.value).split()[0]) == accepted - len(decisions(disk)) > 0
    with open_log(disk.folder.parent) as again:
        pass
    assert [e.event for e in read_entries(disk.folder)][-2:] == ["opened", "closed"]
    assert isinstance(verify(disk.folder, again.public_key), VerifiedLog)


def test_limits_on_files_are_errors_and_not_signals():
    assert signal.getsignal(signal.SIGXFSZ) == signal.SIG_IGN


@pytest.mark.parametrize("name", ["log", "log/decisions-000001.jsonl"])
def test_a_log_that_is_moved_away_is_not_written_until_it_is_back(tmp_path, name):
    with open_log(tmp_path) as log:
        log_decision(log, "r1")
        log.flush()
        (tmp_path / name).rename(tmp_path / "elsewhere")
        log_decision(log, "r2")
        with pytest.raises(AuditError, match="No such file or directory"):
            log.flush()
        (tmp_path / "elsewhere").rename(tmp_path / name)
        wait_until(lambda: log.failed is None)
        log_decision(log, "r3")
    key = log.public_key
    assert isinstance(verify(tmp_path / "log", key), VerifiedLog)
    decisions = [entry.decision for entry in read_entries(tmp_path / "log")]
    assert [record.id for record in decisions if record] == ["r1", "r2", "r3"]


def test_a_log_that_was_replaced_is_left_alone(tmp_path):
    log = open_log(tmp_path)
    log_decision(log, "r1")
    log.flush()
    path = tmp_path / "log" / "decisions-000001.jsonl"
    lines = path.read_bytes()
    path.unlink()
    path.write_bytes(lines[:-20])
    log_decision(log, "r2")
    with pytest.raises(AuditError, match=r"decisions-000001\.jsonl is not the file that was"):
        log.close()
    assert path.read_bytes() == lines[:-20]
