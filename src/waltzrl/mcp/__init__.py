"""The Model Context Protocol: a guard as a server, and a proxy before other servers."""

from waltzrl.mcp.server import mcp_server
from waltzrl.mcp.transport import serve

__all__ = ["mcp_server", "serve"]
