"""The Model Context Protocol: a guard as a server, and a proxy before other servers."""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl_mcp.connection import parse_servers as parse_servers
    from waltzrl_mcp.connection import read_servers as read_servers
    from waltzrl_mcp.proxy import McpProxy as McpProxy
    from waltzrl_mcp.proxy import ProxySettings as ProxySettings
    from waltzrl_mcp.screen import PACKS as PACKS
    from waltzrl_mcp.server import mcp_server as mcp_server
    from waltzrl_mcp.transport import serve as serve
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "connection": ("parse_servers", "read_servers"),
            "proxy": ("McpProxy", "ProxySettings"),
            "screen": ("PACKS",),
            "server": ("mcp_server",),
            "transport": ("serve",),
        },
    )
