"""Bundles, requests and a database that says what it is told to."""

from support.served_examples import BUNDLE
from waltzrl.gateway.exchange import ChatRequest, GatewayRequest
from waltzrl.gateway.keys import Caller
from waltzrl.operations.online.release_follower import ReleaseStatus
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.operations.release.state import Release
from waltzrl.records import Message, Prompt

_BUNDLES = {}


def bundle(name):
    """Return the bundle of this name, always the same one."""
    fields = {field: getattr(BUNDLE, field) for field in BUNDLE.__dataclass_fields__}
    return _BUNDLES.setdefault(name, type(BUNDLE)(**fields | {"id": name}))


def release(state, *, percentage):
    step = ReleaseStep(percentage=percentage, seconds=0, samples=0)
    bounds = ReleaseLimits(unsafe=0.1, overrefusal=0.1)
    plan = ReleasePlan(
        name="test",
        shadow=ReleaseStep(percentage=100, seconds=0, samples=0),
        canary=(step,),
        targets=bounds,
        limits=bounds,
    )
    return Release(id="r1", candidate="new", serving="own", plan=plan, state=state, since=0.0)


def request(subject, turns=("hello",)):
    roles = ("user", "assistant") * len(turns)
    said = tuple(Message(role=r, content=t) for r, t in zip(roles, turns, strict=False))
    if said[-1].role != "user":
        said = (*said, Message(role="user", content="go on"))
    prompt = Prompt(id="wz1", messages=said)
    chat = ChatRequest(api="chat", prompt=prompt, body={}, model="m", subject=subject)
    return GatewayRequest(chat=chat, caller=Caller(name="ada"), model="m")


class Database:
    """Says where the release stands, and opens bundles."""

    def __init__(self, serving=None, release=None, notices=(), broken=None, comes_out_as=None):
        self.released = {} if serving is None else {"": serving}
        self.release, self.notices = release, list(notices)
        self.ended, self.moves = None, {}
        self.broken, self.comes_out_as = broken, comes_out_as
        self.away = None
        self.opened, self.heard, self.held = [], [], []

    def ask(self, last):
        if self.away:
            raise self.away
        new = [notice for notice in self.notices if notice.id > (last or 0)]
        newest = max((notice.id for notice in self.notices), default=last or 0)
        return ReleaseStatus(
            released=self.released,
            release=self.release,
            newest=self.release or self.ended,
            moves=self.moves,
            notices=new,
            last_notice=newest,
        )

    async def open(self, name):
        self.opened.append(name)
        if self.broken:
            raise self.broken
        return bundle(self.comes_out_as or name)

    def hold(self, release, why):
        self.held.append((release, why))

    def told(self, notice):
        self.heard.append(notice)
