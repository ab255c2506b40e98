"""Runs the application: uvicorn on uvloop, which drains before it stops."""

import logging
import socket

import uvicorn

from waltzrl.errors import InputError
from waltzrl.serving.app import App

DRAIN_SECONDS = 30.0
"""What is under way may take so long after the signal to stop."""

log = logging.getLogger(__name__)


async def run(app: App, listener: socket.socket) -> None:
    """Serve until the process is told to stop, then finish what is under way."""
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=75,  # longer than load balancers keep an idle connection
        timeout_graceful_shutdown=5,
    )
    await _Draining(config, app).serve([listener])


def listen(host: str, port: int) -> socket.socket:
    """Take a port, so that a failure is told before anything is loaded.

    Raises:
        InputError: the port is taken, or the address is not this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(2048)  # who comes before all is loaded waits, and is not refused
    except OSError as error:
        listener.close()
        raise InputError(
            f"cannot listen on {host}:{port}: {error.strerror}; choose another --port or --host"
        ) from error
    return listener


class _Draining(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if left := await self._app.door.admission.drain(DRAIN_SECONDS):
            log.warning("%d requests were cut off after %g s", left, DRAIN_SECONDS)
        await super().shutdown(sockets)
