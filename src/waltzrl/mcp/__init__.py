"""The Model Context Protocol: a guard as a server, and a proxy before other servers."""

from waltzrl.mcp.connection import parse_servers, read_servers
from waltzrl.mcp.proxy import McpProxy, ProxySettings
from waltzrl.mcp.screen import PACKS
from waltzrl.mcp.server import mcp_server
from waltzrl.mcp.transport import serve

__all__ = [
    "PACKS",
    "McpProxy",
    "ProxySettings",
    "mcp_server",
    "parse_servers",
    "read_servers",
    "serve",
]
