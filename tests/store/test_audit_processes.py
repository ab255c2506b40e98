"""One log to which several processes append."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.small_logs import COLLABORATION, exchange, settings
from waltzrl.errors import AuditError
from waltzrl.foundation.shared import SharedMemory
from waltzrl.store.audit.log import STATUS_BYTES, Log, LogStatus
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.verify import VerifiedLog, verify
from waltzrl.store.audit.writer import LogWriter

APPENDER = """
import sys
from support.small_logs import log_decision, settings
from waltzrl.store.audit.log import Log, LogStatus
from waltzrl.store.audit.note import PublicKey
from waltzrl.foundation.shared import SharedMemory

pipe, memory, number = map(int, sys.argv[1:4])
status = LogStatus(SharedMemory(memory).bytes)
log = Log(pipe, status, number, settings(), PublicKey.parse(sys.argv[4]))
count = 0
while True:
    log_decision(log, f"{number}-{count}")
    count += 1
    print(count, flush=True)
    if count % 50 == 0:
        log.flush()
"""


@contextmanager
def log_writer(folder):
    """Yield a writer, and how to start a process that appends to its log."""
    memory, processes = SharedMemory.create(STATUS_BYTES), []
    writer = LogWriter.open(
        folder / "log",
        key=folder / "audit.key",
        settings=settings(),
        status=LogStatus(memory.bytes),
    )

    def start(number):
        pipe = writer.connect(number)
        numbers = [str(n) for n in (pipe, memory.descriptor, number)]
        process = subprocess.Popen(
            [sys.executable, "-c", APPENDER, *numbers, str(writer.public_key)],
            stdout=subprocess.PIPE,
            pass_fds=(pipe, memory.descriptor),
            cwd=Path(__file__).parents[1],
        )
        os.close(pipe)
        processes.append(process)
        return process

    try:
        yield writer, start
    finally:
        for process in processes:
            process.kill()
        writer.close()


def kill_after(process, records):
    """Kill a process; return how many records it knew to be accepted, at least `records`."""
    lines = [process.stdout.readline() for _ in range(records)]
    process.send_signal(signal.SIGKILL)
    with process:
        lines += process.stdout.read().splitlines(keepends=True)
    return int([line for line in lines if line.endswith(b"\n")][-1])


@pytest.mark.promise(
    "Operation",
    "One audit log of all workers verifies, whoever is killed; no record that was accepted is "
    "lost with a worker",
)
def test_processes_that_are_killed_have_lost_nothing_that_was_accepted(tmp_path):
    with log_writer(tmp_path) as (writer, start):
        processes = [start(number) for number in range(3)]
        accepted = [kill_after(process, 120) for process in processes]
    ids = [e.decision.id for e in read_entries(tmp_path / "log") if e.decision is not None]
    for number, count in enumerate(accepted):
        own = [name for name in ids if name.startswith(f"{number}-")]
        assert own == [f"{number}-{n}" for n in range(len(own))]
        assert count <= len(own) <= count + 1
    verified = verify(tmp_path / "log", writer.public_key)
    assert isinstance(verified, VerifiedLog)
    assert verified.signed == verified.records == len(ids) + 2
    assert max(Counter(ids).values()) == 1


def log_without_writer(on_failure):
    reads, writes = os.pipe()
    os.close(reads)
    status = LogStatus(memoryview(bytearray(STATUS_BYTES)))
    return Log(writes, status, 0, settings(on_failure=on_failure), None)


def test_without_its_writer_a_log_refuses():
    log = log_without_writer("refuse")
    log.ready()
    for _ in range(2):
        with pytest.raises(AuditError, match="the process that writes it has ended"):
            log.append(exchange("r0"), COLLABORATION.prompt)
    assert log.failed == "the process that writes it has ended"
    with pytest.raises(AuditError, match="may be lost"):
        log.close()


def test_without_its_writer_a_log_that_may_miss_decisions_counts_them():
    log = log_without_writer("serve")
    for _ in range(2):
        log.append(exchange("r0"), COLLABORATION.prompt)
    assert log.unaudited == 2


def test_an_event_that_several_processes_report_is_logged_once(tmp_path):
    with log_writer(tmp_path) as (writer, _):
        logs = [
            Log(writer.connect(number), writer.status, number, settings(), writer.public_key)
            for number in range(2)
        ]
        for log in logs:
            for number in (7, 8):
                log.notice({"kind": "release", "step": number}, number=number)
            log.notice({"kind": "erasure"})
            log.flush()
            log.close()
    notices = [e.notice for e in read_entries(tmp_path / "log") if e.notice is not None]
    assert [notice.get("step", "erasure") for notice in notices] == [7, 8, "erasure", "erasure"]
