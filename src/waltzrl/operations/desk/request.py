"""What a page gets: the fields of its request, who sent it, and the data that it may show."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qs

from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from waltzrl.agents.rules import Rulebook
from waltzrl.errors import InputError, RequestError
from waltzrl.gateway.keys import DeskRole
from waltzrl.gateway.trials import Trials
from waltzrl.operations.desk.rendering import render_page
from waltzrl.operations.desk.session import Session
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.state import Release
from waltzrl.store.audit.note import PublicKey
from waltzrl.store.memory.plans import PlannedTask, TaskResult
from waltzrl.store.memory.safety import SafetyMemory

Found = TypeVar("Found")

MAX_FORM_BYTES = 128 * 1024
"""A form holds at most a corrected reply and a comment, encoded."""
MAX_FIELDS = 60
FORM_TIMEOUT_SECONDS = 10.0
MAX_SHOWN = 20_000
"""Characters of a text that a page shows: of a longer one its beginning and its end."""
MAX_END = 8_000
"""Characters of the end of a text that is shown in part."""
REDACTION_MARGIN = 4_000
"""Characters of the longest personal data, a private key. A text is redacted so far beyond what is
shown that none is cut in two and missed."""


class ShownText(NamedTuple):
    """A text, or a piece of one, as a page shows it."""

    start: int
    """The index where it begins in the text, in which every line end is one character."""
    text: str


DrawPlan: TypeAlias = Callable[[Sequence[PlannedTask], Mapping[str, TaskResult]], str]
"""Draws a plan's tasks, dependencies first, with their results by id; returns an SVG."""
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
CUT = f"\n[{ELLIPSIS}]\n"
"""Stands between the beginning of a text and its end."""
NO_STORE = {"cache-control": "no-store"}
PREFIX = re.compile(r"(?:/[\w.~-]+)+", re.ASCII)
LINK = re.compile(r'((?:href|src|action)=")(?=/desk)')
"""An attribute that leads to a page; no text of anybody holds such quotes unescaped."""
path_prefix: ContextVar[str] = ContextVar("path_prefix", default="")
"""The path below which a proxy offers the gateway; every address that a browser gets begins so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditLog:
    """This gateway's own log."""

    folder: Path
    key: PublicKey
    digest: Callable[[str], str]
    """Makes this log's pseudonym of a person; raises an InputError while its key is unreadable."""


class DeskDatabase(Protocol):
    """What all replicas share; reading either, and every call, blocks and may connect first."""

    @property
    def memory(self) -> SafetyMemory: ...

    @property
    def book(self) -> ReleaseBook: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsoleSource:
    """What is behind the pages."""

    trials: Trials
    """Tries requests on this gateway."""
    database: DeskDatabase | None = None
    """The data of a gateway with a memory; None where the desk only tries requests."""
    redact: Callable[[str], str]
    """Removes personal data from a text: from what viewers see, and from what is written here."""
    audit: AuditLog | None = None
    """The audit log; None when nothing is audited."""
    draw_plan: DrawPlan | None = None
    """The function that draws a plan; None when plans are shown without a picture."""
    rulebook: Rulebook | None = None
    """Marks what rules matched; None for no marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRequest:
    """A request by a reviewer who has logged in."""

    source: ConsoleSource
    session: Session
    http: Request
    """The request as it was received; its body is in `form`."""
    query: Mapping[str, str]
    form: Mapping[str, str]
    """Empty unless it is a POST."""
    now: float
    """Seconds since the epoch."""
    people: Sequence[str] = ()
    """Names of the keys that may label."""

    @property
    def memory(self) -> SafetyMemory:
        return self._database.memory

    @property
    def releases(self) -> ReleaseBook:
        return self._database.book

    @property
    def _database(self) -> DeskDatabase:
        assert self.source.database is not None, "only then are the pages registered that read it"
        return self.source.database

    @property
    def name(self) -> str:
        """The name of the key that logged in."""
        return self.session.key.name

    @property
    def me(self) -> str:
        """The person's name in labels."""
        return self.memory.rater(self.name)

    @property
    def is_over(self) -> bool:
        """Whether the session has been ended."""
        database = self.source.database
        return database is not None and self.session.is_ended(database.memory.store)

    @property
    def path(self) -> str:
        """Decoded, without a slash at the end."""
        return str(self.http.scope["path"])

    def require(self, role: DeskRole) -> None:
        """Check that the session may do what `role` may.

        Raises:
            RequestError: 403.
        """
        if not self.session.may(role):
            raise page_error(
                403, f"this needs the role {role}; your key has the role {self.session.key.role}"
            )

    def require_token(self) -> None:
        """Check that the form was loaded in this session.

        Raises:
            RequestError: 403.
        """
        if not self.session.owns(self.form.get("token", "")):
            raise page_error(403, "this form belongs to another session; reload the page")

    def pieces(self, text: str) -> list[ShownText]:
        """Return what a page shows of a text, redacted for viewers: all, or beginning and end."""
        text = text.replace("\r\n", "\n")
        if len(text) <= MAX_SHOWN:
            return [ShownText(0, self._redacted(text))]
        # The margin before the end is scanned with it, and then left out.
        end = self._redacted(text[-MAX_END - REDACTION_MARGIN :])[REDACTION_MARGIN:]
        return [
            ShownText(0, self._beginning(text, MAX_SHOWN - MAX_END)),
            ShownText(len(text) - len(end), end),
        ]

    def visible(self, text: str) -> str:
        """Return as much of a text as a page shows, redacted for viewers."""
        return CUT.join(piece.text for piece in self.pieces(text))

    def excerpt(self, text: str, max_characters: int) -> str:
        """Return the beginning of a text on one line, redacted for viewers."""
        beginning = self._beginning(text, max_characters)
        is_whole = len(text) <= max_characters
        return " ".join(f"{beginning}{'' if is_whole else ELLIPSIS}".split())

    def _beginning(self, text: str, max_characters: int) -> str:
        head = self._redacted(text[: max_characters + REDACTION_MARGIN])
        if len(text) > max_characters + REDACTION_MARGIN:  # personal data may be cut there
            head = head[:-REDACTION_MARGIN]
        return head[:max_characters]

    def _redacted(self, text: str) -> str:
        return text if self.session.may("annotator") else self.source.redact(text)

    def standing_release(self) -> Release | None:
        """Return the newest release if the session may roll it back: every page has the button."""
        if self.source.database is None or not self.session.may("operator"):
            return None
        release = self.releases.latest()
        return release if release is not None and release.may_roll_back else None

    def page(self, template: str, status: int = 200, **context: object) -> HTMLResponse:
        """Respond with a page that shows who is logged in."""
        return respond_with_page(
            template,
            status,
            session=self.session,
            standing=self.standing_release(),
            here=self.path,
            now=self.now,
            **context,
        )


View: TypeAlias = "Callable[[PageRequest], Response | LaterView]"
"""Builds a page in a thread of its own, where it may block."""
LaterView: TypeAlias = Callable[[], Awaitable[View]]
"""Waits for something on the gateway's event loop, such as a model, and returns what shows it."""


def respond_with_page(template: str, status: int = 200, **context: object) -> HTMLResponse:
    """Respond with a page that browsers and proxies must not store."""
    page = LINK.sub(rf"\g<1>{path_prefix.get()}", render_page(template, **context))
    # a model may have written a lone surrogate, which UTF-8 cannot carry
    return HTMLResponse(page.encode("utf-8", "replace"), status, NO_STORE)


def page_error(status: int, message: str) -> RequestError:
    """Return what a page says in place of its contents; only clients of the API see a kind."""
    return RequestError(status, "page", message)


def find_or_none(read: Callable[[str], Found | None], name: str) -> Found | None:
    """Return what has a name; None also for a text that can be no name, such as one too long."""
    with suppress(InputError):
        return read(name) if name.isprintable() else None
    return None


def redirect_to(path: str) -> RedirectResponse:
    """Send the browser on to another page with GET."""
    return RedirectResponse(path_prefix.get() + path, status_code=303, headers=NO_STORE)


def read_prefix(request: Request) -> str:
    """Return the path that a proxy has removed from the address, or an empty string."""
    prefix = request.headers.get("x-forwarded-prefix", "").rstrip("/")
    return prefix if PREFIX.fullmatch(prefix) else ""


def read_query(request: Request) -> dict[str, str]:
    """Read the fields of a request's query.

    Raises:
        RequestError: 400, there are too many.
    """
    return _parse_fields(request.scope.get("query_string", b""))


def read_number(text: str) -> int | None:
    """Return the whole number that a field of an address is; None for what is none, or too long."""
    # isdigit also holds of a superscript two, which int() refuses.
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


async def read_form(request: Request) -> dict[str, str]:
    """Read the fields of a form that a page of ours sent.

    Raises:
        RequestError: 403 for a form of another site, 413, 408, or 400 for too many fields.
    """
    if not _is_same_origin(request):
        raise page_error(
            403,
            "this form was sent from another site; if it was not, let the proxy before the gateway "
            "pass the header Host on",
        )
    body = b""
    try:
        async with asyncio.timeout(FORM_TIMEOUT_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_FORM_BYTES:
                    raise page_error(413, f"the form is longer than {MAX_FORM_BYTES} bytes")
    except TimeoutError:
        raise page_error(408, "the form was not received in time") from None
    return _parse_fields(body)


def read_cookie(request: Request, name: str) -> str:
    """Return a cookie's value, or an empty string.

    Of several cookies of one name the first counts: browsers send the one with the longest path
    first, and `request.cookies` would let another site of this host replace ours by the last.
    """
    pairs = (part.strip().partition("=") for part in request.headers.get("cookie", "").split(";"))
    return next((value for key, _, value in pairs if key == name), "")


def is_https(request: Request) -> bool:
    """Whether the browser uses https, as far as a proxy in front of us says."""
    scheme = request.headers.get("x-forwarded-proto", request.url.scheme)
    return scheme.partition(",")[0].strip().lower() == "https"


def _is_same_origin(request: Request) -> bool:
    """Whether a page of ours sent it, as far as a browser says; clients without one may."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    # A proxy that replaces the host may tell it in the second; no form of another site has that.
    hosts = [request.headers.get(name, "") for name in ("host", "x-forwarded-host")]
    # Without the scheme, which is another here behind a proxy that ends TLS.
    return origin is None or origin.partition("://")[2] in filter(None, hosts)


def _parse_fields(encoded: bytes) -> dict[str, str]:
    """Read `a=1&b=2`: of a field that comes twice the last counts, empty ones are left out.

    Raises:
        RequestError: 400, there are too many.
    """
    try:
        # latin-1 accepts any byte; browsers send ASCII, with all else in percent escapes.
        fields = parse_qs(encoded.decode("latin-1"), max_num_fields=MAX_FIELDS)
    except ValueError:
        raise page_error(400, f"the request has more than {MAX_FIELDS} fields") from None
    # PostgreSQL stores no NUL
    return {name: values[-1].replace("\0", "") for name, values in fields.items()}
