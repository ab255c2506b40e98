"""A process that has loaded everything and forks workers, so that a worker starts at once.

It has one thread and no event loop, because only such a process can be forked safely. The one that
forks it must have neither yet.
"""

import gc
import os
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from waltzrl.errors import WaltzError

PID = struct.Struct("q")
NAME = "waltzrl-worker"
"""The name of a worker in the list of processes."""


class ForkServer:
    """Forks processes that all do the same work; as a context manager, it ends with the block."""

    def __init__(self, work: Callable[[socket.socket], None]) -> None:
        """Fork the server.

        Args:
            work: called in each forked process with its end of a socket pair; must not return
                before the process may end.
        """
        self._socket, other = socket.socketpair()
        gc.collect()
        gc.freeze()  # a collection would write to all objects, and so copy the memory shared
        if os.fork() == 0:
            self._socket.close()
            _fork_on_request(other, work)
        other.close()

    def fork(self) -> tuple[int, socket.socket]:
        """Fork a process; return its id and our end of its socket pair.

        Raises:
            WaltzError: the server has ended.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._socket, [b"fork"], [theirs.fileno()])
            (pid,) = PID.unpack(self._socket.recv(PID.size))
        except (OSError, struct.error):
            ours.close()
            raise WaltzError("the process that forks workers has ended; start again") from None
        return pid, ours

    def close(self) -> None:
        """End the server; what it has forked goes on."""
        self._socket.close()


def receive_files(source: socket.socket, size: int, most: int) -> tuple[bytes, list[int]]:
    """Receive bytes and open files, which no program that is started inherits.

    The recorder of a worker that died would else keep its sockets open: the worker would not count
    as ended, and the port not be free.

    Args:
        source: from which both come.
        size: in bytes, at most.
        most: of the files.
    """
    data, descriptors, _, _ = socket.recv_fds(source, size, most)
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return data, descriptors


def _fork_on_request(requests: socket.socket, work: Callable[[socket.socket], None]) -> NoReturn:
    """Fork a process for each request, until the other end is closed."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # They are for the supervisor, also where all processes of a terminal or service get them.
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody asks how a process has ended
    while True:
        data, descriptors = receive_files(requests, 4, 1)
        if not data:
            os._exit(0)
        pid = os.fork()
        if pid == 0:
            requests.close()
            _run_worker(socket.socket(fileno=descriptors[0]), work)
        os.close(descriptors[0])
        with suppress(OSError):  # the other end was closed meanwhile
            requests.send(PID.pack(pid))


def _run_worker(control: socket.socket, work: Callable[[socket.socket], None]) -> NoReturn:
    status = 1
    try:
        # Inherited as ignored, and then a worker could not wait for processes of its own.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        with suppress(OSError):  # not everywhere
            Path("/proc/self/comm").write_text(NAME)
        work(control)
        status = 0
    finally:
        # Exit handlers are those of the process that was forked; a worker must not run them.
        os._exit(status)
