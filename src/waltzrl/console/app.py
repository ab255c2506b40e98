"""The desk as an ASGI application: who may come in, which page it is, and no mistake told twice.

browser -> cookie -> session -> page, with what the role may see and do
"""

import asyncio
import logging
import re
import time
import traceback
from collections.abc import Callable, Mapping
from urllib.parse import urlencode

import msgspec

from waltzrl.console.audit_page import show_audit, verify_audit
from waltzrl.console.collaboration_page import label, show_collaboration
from waltzrl.console.list_page import search_collaborations, show_collaborations
from waltzrl.console.overview import show_overview
from waltzrl.console.pages import FOLDER, render
from waltzrl.console.session import COOKIE, HOURS, Session
from waltzrl.console.source import ConsoleSource
from waltzrl.console.steering import steer
from waltzrl.console.visit import COLLABORATIONS, DeskVisit
from waltzrl.console.web import Asked, Replied, asset, page, read_form, see
from waltzrl.errors import RequestError, StorageError
from waltzrl.serving.access import Event, KeyRing, RateLimits, Receive, Send
from waltzrl.serving.keys import Caller

AT_ONCE = 2
"""Pages that are made at once: the threads belong to the gateway, whose answers come first."""
WRONG_KEYS = Caller(name="log-in", requests_per_minute=20, burst=10)
"""How often log-ins may fail, all together. Right keys always open: nobody guesses 256 bits, and
nobody shall lock others out."""
STYLE = (FOLDER / "desk.css").read_bytes()
OURS = re.compile(r"/desk(?:/[\w./%~-]*)?(?:\?[\w.&=%+~-]*)?", re.ASCII)
"""Places at the desk."""
TITLES = {
    403: "Not allowed",
    404: "Not found",
    409: "Not done",
    500: "A mistake of ours",
    503: "Not now",
}

Work = Callable[[DeskVisit], Replied]

log = logging.getLogger(__name__)


class Console:
    """Serves all paths from `/desk` on."""

    def __init__(
        self, keys: KeyRing, source: ConsoleSource, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Open the desk.

        Args:
            keys: of the gateway; those with a role open the desk.
            source: what is shown and steered.
            clock: seconds since the epoch.
        """
        self._keys = keys
        self._source = source
        self._clock = clock
        self._failures = RateLimits()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._works: dict[tuple[str, str], Work] = {
            ("GET", "/desk"): show_overview,
            ("POST", "/desk/release"): steer,
            ("GET", COLLABORATIONS): show_collaborations,
            ("POST", COLLABORATIONS): search_collaborations,
            ("GET", "/desk/audit"): show_audit,
            ("POST", "/desk/audit"): verify_audit,
        }

    async def __call__(self, scope: Event, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI 3 asks."""
        if scope["type"] != "http":
            return
        try:
            asked = Asked.read(scope)
            replied = await self._reply(asked, receive)
        except RequestError as problem:
            replied = _problem(problem)
        except StorageError as error:
            log.error("%s", error)  # noqa: TRY400 - one line
            down = "the database does not answer; the gateway serves on, and its log tells more"
            replied = _problem(RequestError(503, "overloaded", down))
        except Exception as error:  # noqa: BLE001 - the one boundary
            # the message is left out: a database's may quote what people wrote
            lines = "".join(traceback.format_tb(error.__traceback__))
            log.error("the desk failed: %s\n%s", type(error).__name__, lines)  # noqa: TRY400
            replied = _problem(RequestError(500, "internal", "the gateway's log tells more"))
        await replied.send(send, with_body=scope["method"] != "HEAD")

    async def _reply(self, asked: Asked, receive: Receive) -> Replied:
        method = "GET" if asked.method == "HEAD" else asked.method
        if (method, asked.path) == ("GET", "/desk/desk.css"):
            return asset(STYLE, "text/css; charset=utf-8", asked)
        if method == "POST":
            asked = await _with_form(asked, receive)
        elif method != "GET":
            raise RequestError(405, "invalid_request", f"the desk does not take {method}")
        if asked.path == "/desk/login":
            return self._log_in(asked) if method == "POST" else _login_page(asked)
        session = Session.resume(self._keys, asked.cookie(COOKIE), self._clock())
        if session is None:
            return _sent_away(asked)
        try:
            return await self._visited(method, asked, session)
        except RequestError as problem:
            return _problem(problem, session=session, here=asked.path)

    async def _visited(self, method: str, asked: Asked, session: Session) -> Replied:
        """Reply to somebody who has logged in.

        Raises:
            RequestError: 404, 403 for a form of another session, or what the page does not do.
        """
        if method == "POST" and not session.owns(asked.form.get("token", "")):
            raise RequestError(403, "permission", "this form is not of this session; load it again")
        if (method, asked.path) == ("POST", "/desk/logout"):
            return see("/desk/login", _cookie("", 0, asked))
        work = self._work(method, asked.path)
        visit = DeskVisit(source=self._source, asked=asked, session=session, now=self._clock())
        async with self._room:
            return await asyncio.to_thread(work, visit)

    def _log_in(self, asked: Asked) -> Replied:
        session = Session.begin(self._keys, asked.form.get("key", "").strip(), self._clock())
        if session is not None:
            log.info("%s (%s) is at the desk", session.key.name, session.key.id)
            return see(_wanted(asked.form), _cookie(session.cookie, HOURS * 3600, asked))
        try:
            self._failures.take(WRONG_KEYS)
        except RequestError:
            return _login_page(asked, "Too many wrong keys came in; try again in a minute.", 429)
        log.warning("somebody tried to log in at the desk without a key that opens it")
        if self._keys.is_open:
            return _login_page(asked, "This gateway has no keys; serve it with --keys first.", 403)
        return _login_page(asked, "This key does not open the desk.", 403)

    def _work(self, method: str, path: str) -> Work:
        """Find what makes a page.

        Raises:
            RequestError: 404.
        """
        work = self._works.get((method, path))
        if work is None and path.startswith(f"{COLLABORATIONS}/"):
            return label if method == "POST" else show_collaboration
        if work is None:
            raise RequestError(404, "not_found", "there is no such page at the desk")
        return work


async def _with_form(asked: Asked, receive: Receive) -> Asked:
    """Read the form of a request.

    Raises:
        RequestError: 403 for one from another site, or it cannot be read.
    """
    if not asked.comes_from_here:
        raise RequestError(403, "permission", "this form came from another site")
    return msgspec.structs.replace(asked, form=await read_form(receive))


def _sent_away(asked: Asked) -> Replied:
    """Ask whoever has no session, or none any more, to log in."""
    if asked.path in ("/desk", "/desk/logout"):
        return see("/desk/login")
    if asked.method == "POST":
        return _login_page(asked, "You are not logged in any more, so nothing was done.", 403)
    return see(f"/desk/login?{urlencode({'to': asked.place})}")


def _login_page(asked: Asked, problem: str = "", status: int = 200) -> Replied:
    wanted = _wanted(asked.form or asked.query)
    return page(render("login.html", problem=problem, wanted=wanted), status)


def _wanted(fields: Mapping[str, str]) -> str:
    """Return the page that somebody wanted who had to log in first; nothing that is not ours."""
    return fields["to"] if OURS.fullmatch(fields.get("to", "")) else "/desk"


def _problem(error: RequestError, **seen: object) -> Replied:
    title = TITLES.get(error.status, "This did not work")
    return page(render("problem.html", title=title, problem=str(error), **seen), error.status)


def _cookie(value: str, seconds: int, asked: Asked) -> tuple[bytes, bytes]:
    secure = "; Secure" if asked.https else ""
    text = f"{COOKIE}={value}; Max-Age={seconds}; Path=/desk; HttpOnly; SameSite=Lax{secure}"
    return b"set-cookie", text.encode()
