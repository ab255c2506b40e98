"""What counts as the address of a server."""

from urllib.parse import SplitResult, urlsplit

from waltzrl.errors import InputError


def server_address(url: str) -> SplitResult:
    """Return the parts of a URL that names a server by http or https.

    Raises:
        InputError: it names none.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            return parts
    except ValueError:  # such as a port that is no number below 65536
        pass
    raise InputError(f"{url!r} is no server's address; say it like http://localhost:8000/v1")
