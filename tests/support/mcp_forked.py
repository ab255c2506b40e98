"""An MCP server over stdio that `mcp_tools.py --forks` forks, and that needs no time to import.

Its arguments are the socket of that process and the folder of the tools.
"""

import socket
import sys

with socket.socket(socket.AF_UNIX) as link:
    link.connect(sys.argv[1])
    socket.send_fds(link, [sys.argv[2].encode()], [0, 1])
    link.recv(1)  # ends with the server
