"""Memory that processes share."""

import subprocess
import sys

from waltzrl.foundation.shared import SharedMemory

ADDER = """
import sys
from waltzrl.foundation.shared import SharedMemory

memory = SharedMemory(int(sys.argv[1]))
cells = memory.bytes.cast("q")
for _ in range(5000):
    with memory.locked():
        cells[1] += 1
"""


def test_processes_that_lock_lose_no_addition():
    memory = SharedMemory.create(16)
    cells = memory.bytes.cast("q")
    assert list(cells) == [0, 0]
    command = [sys.executable, "-c", ADDER, str(memory.descriptor)]
    processes = [subprocess.Popen(command, pass_fds=[memory.descriptor]) for _ in range(3)]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert list(cells) == [0, 15_000]


def test_a_process_that_dies_with_the_lock_keeps_nobody_out():
    memory = SharedMemory.create(8)
    dying = f"""
import os
from waltzrl.foundation.shared import SharedMemory

with SharedMemory({memory.descriptor}).locked():
    os._exit(1)
"""
    process = subprocess.run([sys.executable, "-c", dying], pass_fds=[memory.descriptor])
    assert process.returncode == 1
    with memory.locked():
        memory.bytes[0] = 1
