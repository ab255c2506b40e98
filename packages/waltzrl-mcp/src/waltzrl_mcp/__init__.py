"""The Model Context Protocol: a guard as a server, and a proxy before other servers."""
