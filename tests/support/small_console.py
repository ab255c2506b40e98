"""A console over a real memory, a real release and a real audit log, called as ASGI."""

import asyncio
import atexit
import re
import shutil
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import NamedTuple
from urllib.parse import urlencode

from support.small_releases import DESCRIPTION
from support.small_trials import open_trials
from waltzrl.gateway.access import KeyRing
from waltzrl.gateway.keys import add_key
from waltzrl.operations.desk import AuditLog, Console, ConsoleSource
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Observation
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round, ServedExchange
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.query import subject_digest
from waltzrl.store.audit.writer import LocalLog
from waltzrl.store.database import open_database
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl.store.privacy.redaction import RedactionRules
from waltzrl.store.privacy.scanner import PersonalDataScanner
from waltzrl_routing.picture import results_as_svg

NOW = 1_800_000_000.0
ROLES = ("viewer", "annotator", "reviewer", "operator")
EMAIL = "ada@example.com"
HOSTILE = """<script>alert(1)</script><img src=x onerror="alert(2)"> ' " & </div>"""
PLAN = ReleasePlan(
    name="short",
    shadow=None,
    canary=(
        ReleaseStep(percentage=5, seconds=60, samples=10),
        ReleaseStep(percentage=50, seconds=60, samples=20),
    ),
    targets=ReleaseLimits(unsafe=0.05, overrefusal=0.10),
    limits=ReleaseLimits(unsafe=0.10, overrefusal=0.15),
)


def collaboration(request="hello", draft="You said hello.", revision=None, advice="Say it kindly."):
    """Return a collaboration, revised when there is a revision."""
    messages = (Message(role="user", content=request),)
    turns = ()
    if revision is not None:
        feedback = Feedback(
            unsafe=True, overrefuse=False, text=advice, risk=0.83, rules=("reply/threat",)
        )
        turns = (Round(feedback=feedback, revision=Reply(text=revision)),)
    return Collaboration(
        prompt=Prompt(id="p", messages=messages), draft=Reply(text=draft), rounds=turns
    )


def exchange(name, collaboration=None, *, seconds_ago=60.0, **fields):
    """Return a served exchange: an error without a collaboration, an unrevised draft with one."""
    default = {"decision": "error" if collaboration is None else "draft", "caller": "search"}
    return ServedExchange(
        id=name,
        time=NOW - seconds_ago,
        collaboration=collaboration,
        **{"bundle": "old", "milliseconds": 100.0, "may_learn": True} | default | fields,
    )


class Site:
    """A console, its data, and a key for each role."""

    def __init__(
        self, folder, url=None, draw_plan=results_as_svg, *, digest=str, categories=None, scrub=str
    ):
        written, keys, log_key = _written()
        shutil.copytree(written, folder, dirs_exist_ok=True)
        self.engine = open_database(url or f"sqlite:///{folder}/memory.db")
        store = MemoryStore(self.engine, scrub=scrub)
        self.memory = SafetyMemory(store, digest, {}, categories or {})
        self.book = ReleaseBook(self.engine)
        self.keys_file = folder / "keys.toml"
        self.keys = dict(keys)
        pseudonym = partial(subject_digest, folder / "audit.key")
        self.audit = AuditLog(folder=folder / "log", key=log_key, digest=pseudonym)
        self.now = NOW
        self.host, self.client = "desk.test", "192.0.2.7"
        self.ring_now = 0.0
        self.ring = KeyRing(self.keys_file, clock=lambda: self.ring_now)
        source = ConsoleSource(
            trials=open_trials(self.ring),
            database=SimpleNamespace(memory=self.memory, book=self.book),
            redact=RedactionRules({}, PersonalDataScanner()).scrub,
            audit=self.audit,
            draw_plan=draw_plan,
        )
        self.desk = Console(self.ring, source, clock=lambda: self.now)

    def begin_release(self):
        """Propose a candidate, and count something of both arms."""
        for bundle in ("old", "new"):
            self.book.add_bundle(bundle, "{}", DESCRIPTION, is_base=bundle == "old")
        release = self.book.propose("new", "old", PLAN, "ada", "to try it")
        good = {"unsafe": False, "overrefusal": False, "error": False}
        for arm in ("serving", "candidate"):
            self.book.observe([Observation(release=release.id, arm=arm, outcomes=good)] * 5)
            self.book.tick({}, release.since + 1 if arm == "serving" else release.since + 2)
        return release

    def look_at_keys(self):
        """Let the next request look at the key file again."""
        self.ring_now += 2

    def ask(self, method, path, form=None, *, cookie="", query="", **headers):
        """Send a request."""
        body = urlencode(form or {}).encode()
        named = {"host": self.host, "cookie": cookie}
        named |= {name.replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "query_string": query.encode(),
            "scheme": "http",
            "client": (self.client, 50000),
            "headers": [(name.encode(), value.encode()) for name, value in named.items()],
        }
        return asyncio.run(_ask(self.desk, scope, body))

    def log_in(self, role):
        """Return a browser that has logged in with the key of a role."""
        reply = self.ask("POST", "/desk/login", {"key": self.keys[role]})
        assert reply.status == 303, reply.text
        return Browser(self, reply.cookie)


@cache
def _written():
    """Return a folder that every site copies, with a memory, keys and a log, and its keys."""
    temporary = TemporaryDirectory()
    atexit.register(temporary.cleanup)
    folder = Path(temporary.name)
    engine = open_database(f"sqlite:///{folder}/memory.db")
    MemoryStore(engine, scrub=str)
    ReleaseBook(engine)
    engine.dispose()
    keys_file = folder / "keys.toml"
    keys = {role: add_key(keys_file, {"name": role, "role": role}) for role in ROLES}
    keys["none"] = add_key(keys_file, {"name": "client"})
    return folder, keys, write_log(folder)


class Browser:
    """Sends its cookie with everything, and a form's token with each form."""

    def __init__(self, site, cookie):
        self.site, self.cookie = site, cookie

    def get(self, path, query=""):
        return self.site.ask("GET", path, cookie=self.cookie, query=query)

    def post(self, path, **fields):
        path, _, query = path.partition("?")
        form = {"token": self.token, **fields}
        return self.site.ask("POST", path, form, cookie=self.cookie, query=query)

    @property
    def token(self):
        return re.search(r'name="token" value="(\w+)"', self.get("/desk").text)[1]


class ConsoleReply(NamedTuple):
    """A response of the console."""

    status: int
    headers: dict
    text: str

    @property
    def cookie(self):
        return self.headers["set-cookie"].partition(";")[0]

    @property
    def words(self):
        """What a reader sees: no tags, single spaces."""
        return " ".join(re.sub(r"<[^>]*>", " ", self.text).split())


async def _ask(desk, scope, body):
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(event):
        sent.append(event)

    await desk(scope, receive, send)
    start, end = sent
    headers = {name.decode(): value.decode() for name, value in start["headers"]}
    return ConsoleReply(start["status"], headers, end["body"].decode())


def write_log(folder):
    """Write two decisions of the audit log, signed; return the key that verifies it."""
    settings = LogSettings(on_failure="refuse")
    with LocalLog.open(folder / "log", key=folder / "audit.key", settings=settings) as log:
        for name, subject in (("wz1", "ada"), ("wz2", "")):
            exchange = ServedExchange(
                id=name,
                time=0.0,
                decision="draft",
                caller="search",
                subject=subject,
                collaboration=collaboration(),
            )
            log.append(exchange, replace(collaboration().prompt, id=name))
        log.flush()
        return log.public_key
