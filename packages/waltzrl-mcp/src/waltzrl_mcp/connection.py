"""The servers behind the proxy: their configuration, and connections that are opened again."""

import asyncio
import os
import re
import shlex
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TypeVar

import httpx2
import msgspec
from mcp import Client, MCPError, StdioServerParameters
from mcp.client import Transport
from mcp.client.streamable_http import streamable_http_client
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, REQUEST_TIMEOUT
from pydantic import ValidationError

from waltzrl.errors import InputError
from waltzrl.foundation.jsonl import read_json, read_text
from waltzrl.policies.server_json import mend_json

_Answer = TypeVar("_Answer")
_ENDED = ("Connection closed", "Session terminated", "SSE stream")
_TIMED_OUT = "timed out"
"""Texts that messages of the SDK begin or end with; a server's own errors may have the same
codes."""
VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_]\w*)(?::-([^}]*))?\}", re.ASCII)
"""How a file names an environment variable, such as one with a secret, and its default."""


class ServerEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A server as `mcpServers` of common clients describes it."""

    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    cwd: str | None = None
    url: str = ""
    """The URL of a server that speaks streamable HTTP, instead of a command."""
    headers: dict[str, str] = {}
    disabled: bool = False
    """True for a server that the client leaves alone."""


class _ServersFile(msgspec.Struct, frozen=True):
    servers: dict[str, ServerEntry] = msgspec.field(name="mcpServers")


def read_servers(path: Path) -> dict[str, ServerEntry]:
    """Read the servers of a JSON file with the key `mcpServers`.

    Raises:
        InputError: the file cannot be read or is invalid, or an entry lacks command and url.
    """
    try:
        table = mend_json(read_json(read_text(path), str(path)))
        servers = msgspec.convert(table, _ServersFile).servers
    except msgspec.ValidationError as error:
        raise InputError(
            f"{path}: {error}; need JSON such as "
            '{"mcpServers": {"files": {"command": "files-server", "args": []}}}'
        ) from None
    enabled = {
        name: msgspec.convert(
            _expand_variables(msgspec.to_builtins(entry), f"{path}: server {name!r}"), ServerEntry
        )
        for name, entry in servers.items()
        if not entry.disabled
    }
    for name, entry in enabled.items():
        if bool(entry.command) == bool(entry.url):
            raise InputError(f"{path}: server {name!r} needs either a command or a url")
    return enabled


def _expand_variables(value: object, where: str) -> object:
    """Return JSON whose texts have the values of the environment variables that they name.

    Raises:
        InputError: a variable is not set and has no default: its name is no key and no address.
    """
    if isinstance(value, dict):
        return {key: _expand_variables(inner, where) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_expand_variables(inner, where) for inner in value]
    if not isinstance(value, str):
        return value

    def find(match: re.Match[str]) -> str:
        found, default = os.environ.get(match[1]), match[2]
        if default is not None:
            return found or default
        if found is None:
            raise InputError(
                f"{where} names the variable {match[1]}, which is not set; set it, or give a "
                f"default: ${{{match[1]}:-DEFAULT}}"
            )
        return found

    return VARIABLE.sub(find, value)


def parse_servers(given: Sequence[str]) -> dict[str, ServerEntry]:
    """Read servers of a command line, each a URL or a command with its arguments.

    Raises:
        InputError: a command is empty or has an open quote.
    """
    servers = {}
    for number, text in enumerate(given, 1):
        name = "server" if len(given) == 1 else f"server{number}"
        if text.startswith(("http://", "https://")):
            servers[name] = ServerEntry(url=text)
            continue
        try:
            command, *arguments = shlex.split(text)
        except ValueError:
            raise InputError(f"server {text!r}: need a URL or a command") from None
        servers[name] = ServerEntry(command=command, args=tuple(arguments))
    return servers


class ServerConnection:
    """One server: connected when it is first needed, and again after its connection ended."""

    def __init__(self, name: str, entry: ServerEntry, timeout_seconds: float) -> None:
        self.name = name
        self._entry = entry
        self._timeout_seconds = timeout_seconds
        self._lock = asyncio.Lock()
        self._client: Client | None = None
        self._leave = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._cause = ""
        """Why the last connection failed, where this machine says so."""

    async def ask(self, question: Callable[[Client], Awaitable[_Answer]]) -> _Answer:
        """Return the server's answer.

        Raises:
            MCPError: the server's own error; or it is unavailable, takes longer than the time
                limit, or sends what is no valid answer, and then the message holds nothing of it.
        """
        client = await self._ensure_connected()
        try:
            return await question(client)
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT and error.message.endswith(_TIMED_OUT):
                text = f"the server {self.name} did not answer within {self._timeout_seconds:g} s"
                raise MCPError(REQUEST_TIMEOUT, text) from None
            if error.message.startswith(_ENDED):
                await self.aclose()
                raise self._make_unavailable_error() from None
            raise
        except (ValidationError, RuntimeError, ValueError):  # quote what the server sent
            raise MCPError(
                INTERNAL_ERROR, f"the server {self.name} sent an invalid answer"
            ) from None

    async def aclose(self) -> None:
        """End the connection; the next question opens another."""
        self._leave.set()
        await self._wait_for_end()

    async def _ensure_connected(self) -> Client:
        async with self._lock:
            if self._client is None:
                await self._connect()
            if self._client is None:
                await self._wait_for_end()
                raise self._make_unavailable_error()
            return self._client

    async def _connect(self) -> None:
        self._leave, opened = asyncio.Event(), asyncio.Event()
        self._task = asyncio.create_task(self._hold(opened))
        # Whichever is first: the connection is open, or the attempt has failed.
        waiting = asyncio.create_task(opened.wait())
        try:
            await asyncio.wait(
                [self._task, waiting],
                timeout=self._timeout_seconds,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            waiting.cancel()
            if self._client is None:
                self._task.cancel()

    async def _wait_for_end(self) -> None:
        """Wait for the end of the connection; how it failed may quote the server, unless it is a
        command that cannot be started or an address that nobody listens at.
        """
        if self._task is not None:
            await asyncio.wait([self._task])
            if not self._task.cancelled():
                # An exception that nobody has looked at would be logged.
                error = self._task.exception()
                local = isinstance(error, OSError | httpx2.ConnectError)
                self._cause = f": {error}" if local else ""
        self._client = None

    async def _hold(self, opened: asyncio.Event) -> None:
        """Keep a connection open; contexts of the SDK end in the task in which they began."""
        entry = self._entry
        async with AsyncExitStack() as stack:
            server: Transport | StdioServerParameters
            if entry.url:
                http = httpx2.AsyncClient(headers=entry.headers, timeout=self._timeout_seconds)
                await stack.enter_async_context(http)
                server = streamable_http_client(entry.url, http_client=http)
            else:
                server = StdioServerParameters(
                    command=entry.command, args=list(entry.args), env=entry.env, cwd=entry.cwd
                )
            # No cache: a definition that has changed must be seen.
            client = Client(server, read_timeout_seconds=self._timeout_seconds, cache=None)
            self._client = await stack.enter_async_context(client)
            opened.set()
            await self._leave.wait()

    def _make_unavailable_error(self) -> MCPError:
        text = f"the server {self.name} is unavailable{self._cause}"
        return MCPError(CONNECTION_CLOSED, text)
