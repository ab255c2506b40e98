"""Processes pinned to a core: started in a group of their own, watched in /proc, ended for sure."""

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

TICKS = os.sysconf("SC_CLK_TCK")
READY_SECONDS = 300.0


class Server:
    """A running server and everything that it started."""

    def __init__(
        self, command: Sequence[str | Path], core: int | str, env: Mapping[str, str], log: Path
    ) -> None:
        self.log = log
        self.ready_seconds = 0.0
        """How long it took from its start until it served."""
        self._spawned = time.perf_counter()
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                ["taskset", "-c", str(core), *command],
                env=os.environ | env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait_until_ready(self, url: str) -> None:
        """Ask `url` until it answers 200.

        Raises:
            RuntimeError: the process ended, or was not ready in time.
        """
        while (passed := time.perf_counter() - self._spawned) < READY_SECONDS:
            try:
                with urllib.request.urlopen(url, timeout=5):
                    self.ready_seconds = time.perf_counter() - self._spawned
                    return
            except (urllib.error.URLError, OSError):
                time.sleep(0.005)
            if self.process.poll() is not None:
                break
        said = self.log.read_text(errors="replace")[-2000:]
        raise RuntimeError(f"{url} is not ready after {passed:.1f} s; {self.log} ends:\n{said}")

    def cpu_seconds(self) -> float:
        """Return the CPU time of the whole group so far, user and system."""
        return sum(self.cpu_seconds_by_process().values())

    def cpu_seconds_by_process(self) -> dict[int, float]:
        """Return the CPU time of each process so far, by its id."""
        stats = self._stats().items()
        return {pid: (int(stat[11]) + int(stat[12])) / TICKS for pid, stat in stats}

    def memory_mb(self) -> float:
        """Return the memory of the whole group, in MB of 10^6 bytes; shared pages count once."""
        kib = 0
        for pid in self._stats():
            with suppress(FileNotFoundError, ProcessLookupError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                kib += next(int(line.split()[1]) for line in rollup.splitlines() if "Pss:" in line)
        return kib * 1024 / 1e6

    def stop(self) -> None:
        """End the group: politely, then for sure."""
        for number, patience_seconds in ((signal.SIGTERM, 5), (signal.SIGKILL, 5)):
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                break
            end = time.perf_counter() + patience_seconds
            while self._stats() and time.perf_counter() < end:
                time.sleep(0.02)
        self.process.wait()

    def _stats(self) -> dict[int, list[str]]:
        """Return the fields of /proc/PID/stat after the name, of each living process of ours."""
        found = {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[2]) == self.process.pid and fields[0] != "Z":
                found[int(path.parent.name)] = fields
        return found


def start_server(
    stack: ExitStack,
    command: Sequence[str | Path],
    ready: str,
    *,
    core: int | str,
    env: Mapping[str, str],
    log: Path,
) -> Server:
    """Start a server, which the stack ends, and wait until the URL `ready` answers 200."""
    server = Server(command, core, env, log)
    stack.callback(server.stop)
    server.wait_until_ready(ready)
    return server
