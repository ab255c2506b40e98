"""A Ray cluster on this machine, its processes, and the end of one of them."""

import os
import signal
from contextlib import contextmanager, suppress
from pathlib import Path

from ray.cluster_utils import Cluster

NODE = {
    "num_cpus": 3,  # in name: what a place takes
    "num_gpus": 0,
    "object_store_memory": 80 * 2**20,
    "include_dashboard": False,
    "include_log_monitor": False,
    "no_monitor": True,  # of machines to add
}
os.environ |= {
    "RAY_prestart_worker_first_driver": "0",  # processes that no test uses
    "RAY_worker_niceness": "0",  # instead of 15
    "RAY_gcs_rpc_server_reconnect_timeout_s": "2",  # instead of 60, when the head is killed
    "RAY_memory_monitor_refresh_ms": "0",  # kills actors when other programs fill the memory
}


@contextmanager
def cluster():
    """Start the head of a cluster; yield it with `address`."""
    head = Cluster(initialize_head=True, head_node_args=NODE)
    try:
        yield head
    finally:
        head.shutdown()
        for agent in left:
            with suppress(ProcessLookupError):
                os.kill(agent, signal.SIGKILL)
        left.clear()


left = []
"""Processes that wait long for a head that was killed."""


def processes(head, name):
    """Return the ids of the actors of a class, of this cluster alone."""
    (raylet,) = head.head_node.all_processes["raylet"]
    children = Path(f"/proc/{raylet.process.pid}/task/{raylet.process.pid}/children").read_text()
    found = []
    for child in children.split():
        title = Path(f"/proc/{child}/cmdline")
        if title.exists() and title.read_bytes().startswith(f"ray::{name}".encode()):
            found.append(int(child))
    return found


def kill(head, name):
    """Kill the actor of a class, and return its id."""
    (process,) = processes(head, name)
    os.kill(process, signal.SIGKILL)
    return process


def kill_head(head):
    """Kill what knows where everything is."""
    left.extend(processes(head, "DashboardAgent") + processes(head, "RuntimeEnvAgent"))
    (server,) = head.head_node.all_processes["gcs_server"]
    os.kill(server.process.pid, signal.SIGKILL)
