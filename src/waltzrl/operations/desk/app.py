"""The review desk as an ASGI application: log-in, routes, and one boundary for errors.

browser -> cookie -> session -> page, with what the role may see and do
"""

import asyncio
import hashlib
import logging
import re
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route, Router
from starlette.types import Message, Receive, Scope, Send

from waltzrl.errors import RequestError, StorageError
from waltzrl.gateway.access import KeyRing
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.limits import RateLimits
from waltzrl.gateway.listener import is_loopback
from waltzrl.gateway.trials import Trials
from waltzrl.operations.desk.audit import show_audit, verify_audit
from waltzrl.operations.desk.bundles import show_bundle, show_bundles
from waltzrl.operations.desk.collaborations import label_collaboration, show_collaboration
from waltzrl.operations.desk.labels import label_many
from waltzrl.operations.desk.overview import move_release, show_overview
from waltzrl.operations.desk.people import find_entries, find_person, show_people
from waltzrl.operations.desk.plans import show_picture, show_plan, show_plans
from waltzrl.operations.desk.queue import (
    export_collaborations,
    search_collaborations,
    show_collaborations,
    with_query,
)
from waltzrl.operations.desk.request import (
    ConsoleSource,
    LaterView,
    PageRequest,
    View,
    is_https,
    page_error,
    path_prefix,
    read_cookie,
    read_form,
    read_prefix,
    read_query,
    redirect_to,
    respond_with_page,
)
from waltzrl.operations.desk.session import COOKIE, HOURS, Session
from waltzrl.operations.desk.trends import show_trends
from waltzrl.operations.desk.trials import TRY, run_trials, show_trial
from waltzrl.operations.desk.workqueues import change_queue, open_next, show_queues

Endpoint = Callable[[Request], Awaitable[Response]]

CONCURRENT_PAGES = 2
"""Pages that are built at the same time: the gateway needs the threads for its answers."""
WRONG_KEYS = Caller(name="log-in", requests_per_minute=20, burst=10)
"""The limit of failed log-ins, all together. A right key always logs in: 256 bits cannot be
guessed, and one caller's failures must not lock out the others."""
FOREIGN = (
    "without API keys, requests are tried only on the machine of the gateway, by its address "
    "there, such as http://127.0.0.1:8080/desk/try"
)
PROXIED = (
    *("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-prefix", "x-real-ip"),
    "via",
)
"""Headers by which a proxy says that it passes on the request of another machine."""
DESK_URL = re.compile(
    # Browsers take an encoded dot for a dot: `%2e%2e` leads one folder up.
    r"/desk(?:/(?!.*(?:\.|%2[eE]){2})[\w./%~-]*)?(?:\?[\w.&=%+~-]*)?",
    re.ASCII,
)
"""The addresses that a log-in may lead to: no other site, and nothing out of the desk."""
SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer, browsers send no Origin with forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ENCODED_HEADERS = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]
TITLES = {
    403: "Not allowed",
    404: "Not found",
    409: "Conflict",
    500: "Internal error",
    503: "Unavailable",
}

logger = logging.getLogger(__name__)


def log_out(request: PageRequest) -> Response:
    """End the session, on the server too, and remove the cookie."""
    request.session.end(request.memory.store)
    response = redirect_to("/desk/login")
    secure = is_https(request.http)
    # A browser removes a cookie only under the path that it was set with.
    path = _cookie_path()
    response.delete_cookie(COOKIE, path=path, secure=secure, httponly=True, samesite="lax")
    return response


def no_such_page(_: PageRequest) -> Response:
    raise page_error(404, "this page does not exist")


def lead_to_trials(_: PageRequest) -> Response:
    return redirect_to(TRY)


class Page(NamedTuple):
    """What answers the requests for an address."""

    path: str
    get: View = no_such_page
    """Shows the page."""
    post: View = no_such_page
    """Does what a form says."""


TRIAL = Page(TRY, show_trial, run_trials)
"""The only page of a desk without a database."""
PAGES = (
    TRIAL,
    Page("/desk/logout", post=log_out),
    Page("/desk", show_overview),
    Page("/desk/release", post=move_release),
    Page("/desk/bundles", show_bundles),
    Page("/desk/bundles/{bundle_id}", show_bundle),
    Page("/desk/collaborations", show_collaborations, search_collaborations),
    Page("/desk/collaborations/{evaluation_id:path}", show_collaboration, label_collaboration),
    Page("/desk/labels", post=label_many),
    Page("/desk/queues", show_queues, change_queue),
    Page("/desk/queues/next", open_next),
    Page("/desk/export", export_collaborations),
    Page("/desk/trends", show_trends),
    Page("/desk/plans", show_plans),
    Page("/desk/plans/{plan_id:path}", show_plan),
    Page("/desk/pictures/{plan_id:path}", show_picture),
    Page("/desk/people", show_people, find_person),
    Page("/desk/audit", show_audit, verify_audit),
    Page("/desk/audit/person", post=find_entries),
)


def open_guest_desk(keys: KeyRing, trials: Trials) -> "Console":
    """Return the desk of a gateway without a memory and without keys: it tries requests."""
    # Guests see what they have typed, and nothing is kept, so there is nothing to redact.
    return Console(keys, ConsoleSource(trials=trials, redact=str))


class Console:
    """Serves every path from `/desk` on."""

    def __init__(
        self, keys: KeyRing, source: ConsoleSource, *, clock: Callable[[], float] = time.time
    ) -> None:
        """Prepare the pages.

        Args:
            keys: of the gateway; those with a role log in.
            source: what is shown and steered.
            clock: seconds since the epoch.
        """
        self._keys = keys
        self._source = source
        self._clock = clock
        self._failures = RateLimits()
        self._places = asyncio.Semaphore(CONCURRENT_PAGES)
        pages = (TRIAL, Page("/desk", lead_to_trials)) if source.database is None else PAGES
        routes = {page.path: self._endpoint(page) for page in pages}
        if source.database is not None:
            routes["/desk/login"] = self._login
        self._router = Router(
            [
                Route("/desk/desk.css", serve_asset("desk.css", "text/css")),
                Route("/desk/desk.js", serve_asset("desk.js", "text/javascript")),
                *(Route(path, serve, methods=["GET", "POST"]) for path, serve in routes.items()),
            ],
            redirect_slashes=False,
            default=self._no_route,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, as ASGI 3 defines it."""
        if scope["type"] != "http":
            return

        async def send_safely(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = dict(message["headers"])  # a picture has a policy of its own
                common = [header for header in ENCODED_HEADERS if header[0] not in own]
                message["headers"] = [*message["headers"], *common]
            # HEAD has the headers of GET, the length among them, and no body.
            elif scope["method"] == "HEAD":
                message["body"] = b""
            await send(message)

        path_prefix.set(read_prefix(Request(scope)))  # each request has a context of its own
        # `/desk/` means `/desk`; the router redirects nothing.
        scope = {**scope, "path": scope["path"].rstrip("/")}
        if scope["method"] not in {"GET", "HEAD", "POST"}:
            error = page_error(405, f"{scope['method']} is not supported")
            await _problem_page(error)(scope, receive, send_safely)
            return
        try:
            await self._router(scope, receive, send_safely)
        except ClientDisconnect:
            return
        except Exception as error:  # noqa: BLE001 - the boundary of what is served without a session
            await _problem_page(_report_error(error))(scope, receive, send_safely)

    def _endpoint(self, page: Page) -> Endpoint:
        """Let views answer requests with a valid session and, if they are forms, its token.

        Nobody on this machine needs a key where the gateway has none and the page is a trial.
        """
        admits_guests = page is TRIAL or self._source.database is None

        async def serve(request: Request) -> Response:
            cookie, now = read_cookie(request, COOKIE), self._clock()
            session = Session.resume(self._keys.named, cookie, now)
            if admits_guests and self._keys.is_open and _is_on_this_machine(request):
                session = Session.admit_guest(cookie, now)
            # A fault of the request is shown within the navigation, which needs the session first.
            fault = None
            query: Mapping[str, str] = {}
            form: Mapping[str, str] = {}
            try:
                query = read_query(request)
                form = await read_form(request) if request.method == "POST" else {}
            except RequestError as error:
                fault = error
            if session is None:
                if fault is None and self._source.database is None:
                    fault = page_error(403, FOREIGN)
                return _ask_to_log_in(request, query) if fault is None else _problem_page(fault)
            visit = PageRequest(
                source=self._source,
                session=session,
                http=request,
                query=query,
                form=form,
                now=now,
                people=self._keys.reviewers(),
            )
            view = page.post if request.method == "POST" else page.get
            response = await self._answer(visit, view, fault)
            if session.is_guest and session.cookie != cookie:
                _set_cookie(response, session, request)
            return response

        return serve

    async def _answer(
        self, visit: PageRequest, view: View, fault: RequestError | None = None
    ) -> Response:
        async with self._places:
            answer = await asyncio.to_thread(_answer_visit, visit, view, fault)
        if isinstance(answer, Response):
            return answer
        return await self._answer(visit, await answer())  # awaited without a place

    async def _no_route(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._endpoint(Page(""))(Request(scope, receive))
        await response(scope, receive, send)

    async def _login(self, request: Request) -> Response:
        if request.method == "POST":
            return self._log_in(request, await read_form(request))
        return _login_page(read_query(request))

    def _log_in(self, request: Request, form: Mapping[str, str]) -> Response:
        # The limit of failures is asked only after the key was refused; see `WRONG_KEYS`.
        session = Session.begin(self._keys, form.get("key", "").strip(), self._clock())
        if session is not None:
            logger.info("%s (%s) logged in at the review desk", session.key.name, session.key.id)
            response = redirect_to(_read_wanted_page(form))
            _set_cookie(response, session, request)
            return response
        try:
            self._failures.take(WRONG_KEYS)
        except RequestError:
            return _login_page(form, "Too many failed log-ins; try again in a minute.", 429)
        logger.warning("refused a log-in at the review desk: the key is invalid or has no role")
        if self._keys.is_open:
            return _login_page(form, "This gateway has no API keys; start it with --keys.", 403)
        return _login_page(form, "This key is invalid or has no role.", 403)


def serve_asset(name: str, media_type: str) -> Endpoint:
    """Serve a file of the package; the browser asks each time whether it has changed."""
    content = Path(__file__).with_name(name).read_bytes()
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    async def serve(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=media_type)

    return serve


def _is_on_this_machine(request: Request) -> bool:
    """Whether the browser runs here, and the page is not one of another site's name.

    Clients without a key may not see drafts, so those of an open gateway on a network get none.
    """
    return (
        request.client is not None
        and is_loopback(request.client.host)
        and is_loopback(request.url.hostname or "")
        and not any(name in request.headers for name in PROXIED)
    )


def _cookie_path() -> str:
    return f"{path_prefix.get()}/desk"


def _set_cookie(response: Response, session: Session, request: Request) -> None:
    response.set_cookie(
        COOKIE,
        session.cookie,
        max_age=HOURS * 3600,
        path=_cookie_path(),
        secure=is_https(request),
        httponly=True,
        samesite="lax",
    )


def _answer_visit(
    visit: PageRequest, view: View, fault: RequestError | None
) -> Response | LaterView:
    """Show a page, or do what a form says; whatever fails, the page keeps its navigation.

    Args:
        visit: by a session.
        view: shows the page, or does what the form says.
        fault: of the request's fields, which could not be read; None if they were.
    """
    try:
        if visit.is_over:
            return _ask_to_log_in(visit.http, visit.query)
        if fault is None:
            if visit.http.method == "POST":
                # Before the view: nothing may change by a form that another site made.
                visit.require_token()
            return view(visit)
    except Exception as error:  # noqa: BLE001 - the boundary of what is served to a session
        fault = _report_error(error)
    standing = None
    with suppress(Exception):  # the page that reports a failure must not fail by it
        standing = visit.standing_release()
    return _problem_page(fault, session=visit.session, standing=standing, here=visit.path)


def _ask_to_log_in(request: Request, query: Mapping[str, str]) -> Response:
    path = request.scope["path"]
    if path in ("/desk", "/desk/logout"):
        return redirect_to("/desk/login")
    wanted = with_query(quote(path), query)
    if request.method == "POST":
        back = {"to": wanted} if path.startswith("/desk/collaborations/") else {}
        return _login_page(back, "Your session has ended; nothing was changed.", 403)
    return redirect_to(with_query("/desk/login", {"to": wanted}))


def _login_page(fields: Mapping[str, str], problem: str = "", status: int = 200) -> Response:
    return respond_with_page(
        "login.html", status, problem=problem, wanted=_read_wanted_page(fields)
    )


def _read_wanted_page(fields: Mapping[str, str]) -> str:
    """Return the page that asked for the log-in; the overview if it is not one of ours."""
    return fields["to"] if DESK_URL.fullmatch(fields.get("to", "")) else "/desk"


def _problem_page(error: RequestError, **context: object) -> Response:
    title = TITLES.get(error.status, "Request failed")
    return respond_with_page(
        "problem.html", error.status, title=title, problem=str(error), **context
    )


def _report_error(error: Exception) -> RequestError:
    """Return what a page says of an exception, and log what an operator needs to know."""
    if isinstance(error, RequestError):
        return error
    if isinstance(error, StorageError):
        logger.error("%s", error)
        message = "the database is unavailable; the gateway still answers, and its log has details"
        return page_error(503, message)
    # without the message: a database's may quote what users wrote
    lines = "".join(traceback.format_tb(error.__traceback__))
    logger.error("the review desk failed: %s\n%s", type(error).__name__, lines)
    return page_error(500, "the gateway's log has details")
