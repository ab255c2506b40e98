"""Requests from browsers and the replies to them: forms, cookies, and what keeps pages apart."""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Self
from urllib.parse import parse_qs, quote, urlencode

import msgspec

from waltzrl.errors import RequestError
from waltzrl.serving.access import Event, Receive, Send

LONGEST_FORM = 16 * 1024
"""Bytes; a form holds a key, a label or a sentence."""
FORM_SECONDS = 10.0

HTML = "text/html; charset=utf-8"
POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; "
    "frame-ancestors 'none'; base-uri 'none'"
)
SAFE = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),  # with no-referrer, browsers send no Origin with forms
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
"""Headers of everything that leaves the desk."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A request, as far as the desk reads it."""

    method: str
    path: str
    """Decoded, without a slash at the end."""
    query: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    """Names in lower case."""
    https: bool
    """It left the browser over https, as far as we are told."""
    form: Mapping[str, str] = {}

    @classmethod
    def read(cls, scope: Event) -> Self:
        """Read an ASGI scope."""
        headers = dict(scope["headers"])
        scheme = headers.get(b"x-forwarded-proto", scope.get("scheme", "http").encode())
        return cls(
            method=scope["method"],
            path=scope["path"].rstrip("/"),
            query=_fields(scope.get("query_string", b"")),
            headers=headers,
            https=scheme.partition(b",")[0].strip().lower() == b"https",
        )

    @property
    def place(self) -> str:
        """Path and query, as a link."""
        return quote(self.path) + ("?" + urlencode(self.query) if self.query else "")

    def cookie(self, name: str) -> str:
        """Return a cookie's value; empty when there is none."""
        sent = self.headers.get(b"cookie", b"").decode("latin-1")
        pairs = (part.strip().partition("=") for part in sent.split(";"))
        return next((value for found, _, value in pairs if found == name), "")

    @property
    def comes_from_here(self) -> bool:
        """Whether a page of ours sent it, as far as a browser says; others than browsers may."""
        site = self.headers.get(b"sec-fetch-site")
        if site is not None:
            return site == b"same-origin"
        origin = self.headers.get(b"origin")
        return origin is None or origin.partition(b"://")[2] == self.headers.get(b"host", b"")


class Replied(msgspec.Struct, frozen=True, kw_only=True):
    """What goes back."""

    body: bytes = b""
    status: int = 200
    headers: tuple[tuple[bytes, bytes], ...] = ()

    async def send(self, send: Send, *, with_body: bool) -> None:
        """Send it, with the headers that everything of the desk has."""
        size = (b"content-length", str(len(self.body)).encode())
        headers = [*self.headers, size, *SAFE]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body if with_body else b""})


def page(html: str, status: int = 200) -> Replied:
    """Reply with a page, which nobody may keep."""
    headers = ((b"content-type", HTML.encode()), (b"cache-control", b"no-store"))
    body = html.encode("utf-8", "replace")
    return Replied(body=body, status=status, headers=headers)


def see(path: str, *headers: tuple[bytes, bytes]) -> Replied:
    """Send the browser to another page of the desk."""
    to = ((b"location", path.encode()), (b"cache-control", b"no-store"))
    return Replied(status=303, headers=(*to, *headers))


def asset(body: bytes, kind: str, asked: Asked) -> Replied:
    """Reply with a file that holds nothing of anybody; a browser asks whether it has changed."""
    tag = b'"%s"' % hashlib.sha256(body).hexdigest()[:16].encode()
    headers = ((b"etag", tag), (b"cache-control", b"no-cache"))
    if asked.headers.get(b"if-none-match") == tag:
        return Replied(status=304, headers=headers)
    return Replied(body=body, headers=((b"content-type", kind.encode()), *headers))


async def read_form(receive: Receive) -> dict[str, str]:
    """Read the fields of a form.

    Raises:
        RequestError: it is too long, too slow, or no form.
    """
    body = b""
    try:
        async with asyncio.timeout(FORM_SECONDS):
            more = True
            while more:
                event = await receive()
                body += event.get("body", b"")
                more = event.get("more_body", False)
                if len(body) > LONGEST_FORM:
                    raise RequestError(413, "too_large", f"a form has at most {LONGEST_FORM} bytes")
    except TimeoutError:
        raise RequestError(408, "invalid_request", "the form did not come in time") from None
    return _fields(body)


def _fields(encoded: bytes) -> dict[str, str]:
    """Read `a=1&b=2`; of a field that comes twice the last counts, an empty one is none.

    Raises:
        RequestError: there are too many.
    """
    try:
        found = parse_qs(encoded.decode("latin-1"), max_num_fields=50)
    except ValueError:
        raise RequestError(400, "invalid_request", "the request has too many fields") from None
    return {name: values[-1].replace("\0", "") for name, values in found.items()}
