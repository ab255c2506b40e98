"""The Model Context Protocol: a guard as a server, and a proxy before other servers."""

from typing import TYPE_CHECKING

from waltzrl.foundation.first_use import imported_on_first_use

if TYPE_CHECKING:
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

# To type checkers a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:
    __getattr__ = imported_on_first_use(
        __name__,
        {
            ".connection": ("parse_servers", "read_servers"),
            ".proxy": ("McpProxy", "ProxySettings"),
            ".screen": ("PACKS",),
            ".server": ("mcp_server",),
            ".transport": ("serve",),
        },
    )
