"""Processes forked from one that has loaded everything; run in a process without threads."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from waltzrl.gateway.processes.fork_server import receive_files

PARENT = """
import os, signal, socket, sys
from pathlib import Path
from waltzrl.gateway.processes.fork_server import ForkServer
from waltzrl.errors import WaltzError
from waltzrl.gateway.access import RequestHeaders

def work(control):
    request = RequestHeaders.read({"headers": []})
    control.sendall(request.context.id.encode())
    assert control.recv(10) == b"go on"
    control.sendall(Path("/proc/self/comm").read_bytes())

server = ForkServer(work)
forked = [server.fork() for _ in range(3)]
ids = {control.recv(100) for _, control in forked}
assert len(ids) == 3, ids
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-c", PARENT + code], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_forked_processes_make_ids_of_their_own_and_outlive_the_server():
    assert (
        run("""
server.close()
for _, control in forked:
    control.sendall(b"go on")
    assert control.recv(100) == b"waltzrl-worker\\n"
    assert control.recv(100) == b""
""")
        == ""
    )


def test_a_server_that_has_ended_is_named():
    said = run("""
children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
os.kill(int(children[0]), signal.SIGKILL)
os.waitpid(int(children[0]), 0)
try:
    server.fork()
except WaltzError as error:
    print(error)
""")
    assert said == "the process that forks workers has ended; start again\n"


def test_files_that_are_received_are_inherited_by_no_program():
    ours, theirs = socket.socketpair()
    with ours, theirs, Path(os.devnull).open("rb") as file:
        socket.send_fds(ours, [b"setup"], [file.fileno(), ours.fileno()])
        data, descriptors = receive_files(theirs, 100, 8)
        assert (data, len(descriptors)) == (b"setup", 2)
        assert not any(map(os.get_inheritable, descriptors))
        for descriptor in descriptors:
            os.close(descriptor)
