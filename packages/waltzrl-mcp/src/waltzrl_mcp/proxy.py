"""A proxy before other MCP servers: nothing that they send reaches a model unreviewed."""

import asyncio
import logging
import re
import shlex
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import msgspec
from mcp import Client, MCPError
from mcp import types as wire
from mcp.server import Server
from mcp.server.context import ServerRequestContext
from pydantic import BaseModel

from waltzrl import __version__
from waltzrl.errors import InputError
from waltzrl.foundation.files import write_bytes
from waltzrl.gateway.guard import Guard
from waltzrl_mcp.connection import ServerConnection, ServerEntry
from waltzrl_mcp.screen import digest_definition, reasons_against, reasons_against_call

MOST_PAGES = 100
"""The most pages of one listing that are read."""
CHANGED = "changed since it was first listed"
NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
"""What the APIs of models refuse in names of tools, and names of servers may have."""
PROTOCOL = "io.modelcontextprotocol/"
"""How names in `_meta` begin that the protocol itself uses."""

logger = logging.getLogger("waltzrl.mcp")
Context = ServerRequestContext[Any, Any]
_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """How the proxy treats definitions, and where it writes."""

    timeout_seconds: float = 60.0
    """The time in which a server must be connected, and in which it must give each answer."""
    allowed: frozenset[str] = frozenset()
    """Definitions that are listed whatever the guards say, as NAME@DIGEST of a log line."""
    pins: Path | None = None
    """A JSON file with the digest of each definition when it was first listed; None remembers them
    until the proxy ends."""
    log: Path | None = None
    """A file to which each decision is appended as a line of JSON, without content."""


class McpProxy:
    """Serves what other servers offer; an asynchronous context manager."""

    def __init__(
        self,
        servers: Mapping[str, ServerEntry],
        guards: Sequence[Guard],
        settings: ProxySettings | None = None,
    ) -> None:
        """Describe the servers; they are connected on entry.

        Args:
            servers: by name. With several, names of tools and prompts become `SERVER__NAME`,
                with `_` for what models' APIs refuse in the name of a server.
            guards: each must agree with whatever passes; the caller closes them.
            settings: None for the defaults.

        Raises:
            InputError: there is no server, or the file of pins cannot be read.
        """
        if not servers:
            raise InputError("no MCP server was given; give a command, a URL or --config FILE")
        self._settings = settings or ProxySettings()
        self._servers = [
            ServerConnection(name, entry, self._settings.timeout_seconds)
            for name, entry in servers.items()
        ]
        self._guards = guards
        self._pins = _read_pins(self._settings.pins)
        self._tools: dict[str, tuple[ServerConnection, str]] = {}
        """The server and the own name of each tool that was listed."""
        self._prompts: dict[str, tuple[ServerConnection, str]] = {}
        self._owners: dict[str, ServerConnection] | None = None
        """The first server that listed a URI; None before resources were listed."""
        self._refused: dict[tuple[str, str], tuple[str, ...]] = {}
        """The reasons against each tool and prompt, by kind and name; none against what was
        listed."""
        self.instructions: str | None = None
        """What the servers say about themselves, for a model."""
        self.counts: Counter[tuple[str, bool]] = Counter()
        """The number of decisions by kind (call, result, ...), and whether it passed."""

    async def __aenter__(self) -> "McpProxy":
        """Connect to all servers; one that is unavailable is tried again when it is needed."""
        greetings = await asyncio.gather(*map(self._greet_server, self._servers))
        self.instructions = "\n\n".join(filter(None, greetings)) or None
        return self

    async def __aexit__(self, *exception: object) -> None:
        await asyncio.gather(*(server.aclose() for server in self._servers))
        passed = sum(count for (_, has_passed), count in self.counts.items() if has_passed)
        logger.warning("MCP proxy: %d passed, %d withheld", passed, self.counts.total() - passed)

    def server(self) -> Server[Any]:
        """Return what `waltzrl_mcp.serve` serves."""
        return Server(
            "waltzrl-proxy",
            version=__version__,
            instructions=self.instructions,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_list_resource_templates=self._list_templates,
            on_read_resource=self._read_resource,
            on_list_prompts=self._list_prompts,
            on_get_prompt=self._get_prompt,
        )

    async def _list_tools(self, _context: Context, _params: object) -> wire.ListToolsResult:
        tools, self._tools = await self._list_acceptable(Client.list_tools, "tools")
        return wire.ListToolsResult(tools=tools)

    async def _list_prompts(self, _context: Context, _params: object) -> wire.ListPromptsResult:
        prompts, self._prompts = await self._list_acceptable(Client.list_prompts, "prompts")
        return wire.ListPromptsResult(prompts=prompts)

    async def _list_acceptable(
        self, listed: Callable[..., Awaitable[Any]], field: str
    ) -> tuple[list[Any], dict[str, tuple[ServerConnection, str]]]:
        """Return the definitions of a listing that may be shown, and where each comes from."""
        shown: list[Any] = []
        origins: dict[str, tuple[ServerConnection, str]] = {}
        for server, definition in await self._list_all(listed, field, field):
            name = self._qualify(NOT_IN_NAMES.sub("_", server.name), definition.name)
            # A server must not take over the calls of one that was listed before, and no client
            # can tell two definitions of one name apart.
            if name in origins:
                logger.warning(
                    "left out %s of %s: the name is taken", _escape_name(name), server.name
                )
            elif await self._accepts(server, field, name, definition):
                origins[name] = server, definition.name
                shown.append(definition.model_copy(update={"name": name}))
        return shown, origins

    async def _list_resources(self, _context: Context, _params: object) -> wire.ListResourcesResult:
        listed = await self._list_all(Client.list_resources, "resources", "resources")
        owners: dict[str, ServerConnection] = {}
        for server, resource in listed:
            # Of a resource that is withheld too: another server may not answer for it.
            owners.setdefault(str(resource.uri), server)
        self._owners = owners
        return wire.ListResourcesResult(resources=await self._select_readable(listed, "resources"))

    async def _list_templates(
        self, _context: Context, _params: object
    ) -> wire.ListResourceTemplatesResult:
        field = "resource_templates"
        listed = await self._list_all(Client.list_resource_templates, field, "resources")
        return wire.ListResourceTemplatesResult(
            resource_templates=await self._select_readable(listed, field)
        )

    async def _select_readable(
        self, listed: Sequence[tuple[ServerConnection, Any]], field: str
    ) -> list[Any]:
        """Return the items of a listing that a model may read."""
        return [
            item
            for server, item in listed
            if not await self._find_reasons(field, server.name, item)
        ]

    async def _list_all(
        self, listed: Callable[..., Awaitable[Any]], field: str, capability: str
    ) -> list[tuple[ServerConnection, Any]]:
        """Return what the servers list; a server that fails is logged, and hides no other.

        Raises:
            MCPError: all servers failed.
        """

        async def items(server: ServerConnection) -> list[Any] | MCPError:
            try:
                if not await _has_capability(server, capability):
                    return []
                return await self._ask_server(server, "", partial(_list_all_pages, listed, field))
            except MCPError as error:
                logger.warning(
                    "no %s of the server %s: %s", field, server.name, _escape_name(str(error))
                )
                return error

        answers = await asyncio.gather(*map(items, self._servers))
        failures = [answer for answer in answers if isinstance(answer, MCPError)]
        if len(failures) == len(answers):
            raise failures[0]
        return [
            (server, item)
            for server, answer in zip(self._servers, answers, strict=True)
            if not isinstance(answer, MCPError)
            for item in answer
        ]

    async def _call_tool(
        self, context: Context, params: wire.CallToolRequestParams
    ) -> wire.CallToolResult:
        name, arguments = params.name, params.arguments or {}
        if name not in self._tools:  # not listed yet, or refused
            await self._list_tools(context, None)
        if refused := self._refused.get(("tools", name)):
            self._record("call", name, refused)
            return _make_error_result("Not called: the tool's description was refused", refused)
        if name not in self._tools:
            raise MCPError(wire.INVALID_PARAMS, "there is no tool of this name; list the tools")
        server, own_name = self._tools[name]
        reasons = await reasons_against_call(self._guards, own_name, arguments)
        self._record("call", name, reasons)
        if reasons:
            return _make_error_result("Not called: the arguments were flagged", reasons)

        async def report(progress: float, total: float | None, message: str | None) -> None:
            # Clients may show the message to their model, as they do with a result.
            note = wire.TextContent(type="text", text=message or "")
            if message and await self._find_reasons("progress", name, note):
                message = None
            await context.session.report_progress(progress, total, message)

        meta = _select_meta(context)
        result = await self._ask_server(
            server,
            name,
            lambda c: c.call_tool(own_name, arguments, progress_callback=report, meta=meta),
        )
        if reasons := await self._find_reasons("result", name, result):
            return _make_error_result("The tool ran, and its result was withheld", reasons)
        return result

    async def _read_resource(
        self, context: Context, params: wire.ReadResourceRequestParams
    ) -> wire.ReadResourceResult:
        """Ask the server that lists a URI; of a URI that is not listed, one after the other."""
        if self._owners is None:
            await self._list_resources(context, None)
        owner, meta = (self._owners or {}).get(str(params.uri)), _select_meta(context)
        failure = MCPError(wire.INVALID_PARAMS, "no server has this resource")
        for server in [owner] if owner else self._servers:
            try:
                if not await _has_capability(server, "resources"):
                    continue
                result = await self._ask_server(
                    server, "", lambda c: c.read_resource(params.uri, meta=meta)
                )
            except MCPError as error:
                failure = error
                continue
            await self._require_readable("resource", server.name, result)
            return result
        raise failure

    async def _get_prompt(
        self, context: Context, params: wire.GetPromptRequestParams
    ) -> wire.GetPromptResult:
        if params.name not in self._prompts:
            await self._list_prompts(context, None)
        if params.name not in self._prompts:
            raise MCPError(wire.INVALID_PARAMS, "there is no such prompt, or it was refused")
        server, own_name = self._prompts[params.name]
        meta = _select_meta(context)
        result = await self._ask_server(
            server, params.name, lambda c: c.get_prompt(own_name, params.arguments, meta=meta)
        )
        await self._require_readable("prompt", params.name, result)
        return result

    async def _ask_server(
        self, server: ServerConnection, name: str, question: Callable[[Client], Awaitable[_Answer]]
    ) -> _Answer:
        """Return a server's answer, or raise its error after a review: models read errors too."""
        try:
            return await server.ask(question)
        except MCPError as error:
            if reasons := await self._find_reasons("error", name or server.name, error.error):
                text = f"the server's error was withheld ({', '.join(reasons)})"
                raise MCPError(error.code, text) from None
            raise

    async def _greet_server(self, server: ServerConnection) -> str:
        """Connect to a server, and return what it says about itself, if that may be read."""
        try:
            text = await server.ask(_read_instructions)
        except MCPError as error:
            logger.warning("%s", error)
            return ""
        note = wire.TextContent(type="text", text=text)
        return "" if await self._find_reasons("instructions", server.name, note) else text

    def _qualify(self, server: str, name: str) -> str:
        """Return a name with that of its server, unless that is alone."""
        return name if len(self._servers) == 1 else f"{server}__{name}"

    async def _accepts(
        self, server: ServerConnection, field: str, name: str, definition: wire.Tool | wire.Prompt
    ) -> bool:
        """Whether a definition may be listed: allowed, or unchanged and not flagged."""
        digest, own_name = digest_definition(definition), definition.name
        pin = f"{server.name} {field} {self._qualify(server.name, own_name)}"
        allow = f"{_escape_name(name)}@{digest}"
        reasons: tuple[str, ...] = ()
        if allow not in self._settings.allowed:
            reasons = await reasons_against(self._guards, definition)
            if self._pins.get(pin, digest) != digest:
                reasons = (CHANGED, *reasons)
        self._record(field, name, reasons)
        self._refused[field, name] = reasons
        if reasons:
            logger.warning("to list it as it is: --allow %s", shlex.quote(allow))
            return False
        # Whoever allows a changed definition pins it as it is now.
        if self._pins.get(pin) != digest:
            self._pins[pin] = digest
            if self._settings.pins:
                write_bytes(self._settings.pins, msgspec.json.encode(self._pins))
        return True

    async def _find_reasons(self, kind: str, name: str, data: BaseModel) -> tuple[str, ...]:
        """Return why a model should not read `data`, and record the decision."""
        reasons = await reasons_against(self._guards, data)
        self._record(kind, name, reasons)
        return reasons

    async def _require_readable(self, kind: str, name: str, data: BaseModel) -> None:
        """Raise an error unless a model may read `data`."""
        if reasons := await self._find_reasons(kind, name, data):
            text = f"The {kind} was withheld ({', '.join(reasons)})."
            raise MCPError(wire.INTERNAL_ERROR, text)

    def _record(self, kind: str, name: str, reasons: Sequence[str]) -> None:
        self.counts[kind, not reasons] += 1
        if reasons:
            logger.warning("withheld: %s %s (%s)", kind, _escape_name(name), ", ".join(reasons))
        if self._settings.log:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            line = {"time": time, "kind": kind, "name": name, "passed": not reasons}
            with self._settings.log.open("ab") as file:
                file.write(msgspec.json.encode(line | {"reasons": list(reasons)}) + b"\n")


def _select_meta(context: Context) -> wire.RequestParamsMeta | None:
    """Return what a request says about itself, such as the id of a trace; nothing of the
    client's connection to the proxy.
    """
    meta: Mapping[str, Any] = context.meta or {}
    own = {k: v for k, v in meta.items() if k != "progress_token" and not k.startswith(PROTOCOL)}
    return cast("wire.RequestParamsMeta", own) if own else None


async def _has_capability(server: ServerConnection, capability: str) -> bool:
    async def capabilities(client: Client) -> wire.ServerCapabilities:
        return client.server_capabilities

    return getattr(await server.ask(capabilities), capability) is not None


async def _read_instructions(client: Client) -> str:
    return client.instructions or ""


async def _list_all_pages(
    listed: Callable[..., Awaitable[Any]], field: str, client: Client
) -> list[Any]:
    """Return all items of a listing, of at most `MOST_PAGES` pages."""
    items: list[Any] = []
    cursor, asked = None, set[str | None]()
    # Some servers end with an empty cursor, or give the same one for ever.
    while cursor not in asked and len(asked) < MOST_PAGES:
        asked.add(cursor)
        page = await listed(client, cursor=cursor)
        items += getattr(page, field)
        cursor = page.next_cursor or None
    return items


def _make_error_result(text: str, reasons: Sequence[str]) -> wire.CallToolResult:
    words = f"waltzrl: {text} ({', '.join(reasons)})."
    content = wire.TextContent(type="text", text=words)
    return wire.CallToolResult(content=[content], is_error=True)


def _escape_name(name: str) -> str:
    """Return a name on one line, in ASCII: servers choose names."""
    return ascii(name)[1:-1]


def _read_pins(path: Path | None) -> dict[str, str]:
    """Return the digests that a file holds; none if there is no file yet.

    Raises:
        InputError: it cannot be read, or its folder does not exist.
    """
    if path is None:
        return {}
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}; create it")
    if not path.exists():
        return {}
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path}: {error}; delete it to pin all definitions anew") from None
