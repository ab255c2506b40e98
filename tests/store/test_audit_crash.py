"""A writer that is killed in the middle of its work."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.small_logs import log_decision, open_log, unchanged
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import VerifiedLog, verify

WRITER = """
import sys
from pathlib import Path
from support.small_logs import unchanged, fill, open_log

log = open_log(Path(sys.argv[1]), commit_seconds=0.001, checkpoint_records=20,
               segment_bytes=20_000, contents=unchanged)
number = 0
while True:
    fill(log, 7, number)
    number += 7
    if number % 5 == 0:
        log.flush()
        print(number, flush=True)
"""


def write_until_killed(folder, seconds):
    """Return how many records the writer knew to be on the disk when it was killed."""
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, folder],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    ) as writer:
        writer.stdout.readline()  # it is at work
        time.sleep(seconds)
        writer.send_signal(signal.SIGKILL)
        told = writer.stdout.read().splitlines(keepends=True)
    assert writer.returncode == -signal.SIGKILL
    whole = [int(line) for line in told if line.endswith(b"\n")]
    return whole[-1] if whole else 35


@pytest.mark.parametrize("attempt", range(4))
def test_what_was_committed_survives_kill_9_and_the_log_goes_on(tmp_path, attempt):
    seconds = random.Random(attempt).uniform(0.02, 0.2)
    committed = write_until_killed(tmp_path, seconds)
    with open_log(tmp_path) as log:
        log_decision(log, "after")
    assert isinstance(verify(tmp_path / "log", log.public_key), VerifiedLog)
    entries = list(read_entries(tmp_path / "log"))
    ids = [entry.decision.id for entry in entries if entry.decision is not None]
    assert ids == [f"r{number}" for number in range(len(ids) - 1)] + ["after"]
    assert len(ids) - 1 >= committed
    assert [entry.event for entry in entries if entry.decision is None] == [
        "opened", "opened", "closed",
    ]  # fmt: skip


@pytest.mark.parametrize("cut", [1, 30, 700])
def test_a_line_that_a_crash_tore_is_cut_off_and_the_log_goes_on(tmp_path, cut):
    with open_log(tmp_path, contents=unchanged) as log:
        log_decision(log, "first")
        log.flush()
        folder = tmp_path / "log"
        saved = {path: path.read_bytes() for path in folder.iterdir()}
        log_decision(log, "torn")
        log.flush()
        line = (folder / "decisions-000001.jsonl").read_bytes().splitlines(keepends=True)[2]
    for path in list(folder.iterdir()):
        if path in saved:
            path.write_bytes(saved[path])
        else:
            path.unlink()
    for name, torn in (
        ("decisions-000001.jsonl", line[:cut]),
        ("checkpoints", b"waltzrl.audit/torn\n3\n"),
        ("contents-000001.jsonl", b'{"id":"to'),
    ):
        with (folder / name).open("ab") as file:
            file.write(torn)
    assert isinstance(verify(folder, log.public_key), VerifiedLog)
    with open_log(tmp_path, contents=unchanged) as log:
        log_decision(log, "second")
    found = verify(folder, log.public_key)
    assert isinstance(found, VerifiedLog)
    assert found.signed == 5
    assert b'"torn"' in line
    assert b'"torn"' not in (folder / "decisions-000001.jsonl").read_bytes()
    assert "waltzrl.audit/torn" not in (folder / "checkpoints").read_text()
    for line in (folder / "contents-000001.jsonl").read_text().splitlines():
        json.loads(line)


def test_a_crash_before_the_first_record_leaves_a_log_that_opens(tmp_path):
    with open_log(tmp_path):
        pass
    folder = tmp_path / "log"
    notes = (folder / "checkpoints").read_text()
    assert notes.split("\n")[1] == "0"
    for path in folder.iterdir():
        path.unlink()
    (folder / "checkpoints").write_text(notes[: notes.index("\n\n—")])
    with open_log(tmp_path) as log:
        pass
    assert verify(folder, log.public_key).records == 2
