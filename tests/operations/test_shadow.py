"""What a shadow answers, and what it leaves out."""

import asyncio
from dataclasses import replace

from msgspec import structs

from support.releases_by_hand import Database, bundle, release, request
from waltzrl.agents import RulesReviewer
from waltzrl.agents.rules import load_rulebook
from waltzrl.collaboration import draft_only
from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Assignment, UpstreamReply
from waltzrl.gateway.gateway import DecisionLog, Gateway, SingleBundle
from waltzrl.operations.online.release_follower import ReleaseFollower
from waltzrl.operations.online.shadow import Shadows
from waltzrl.records import Reply


class Model:
    """Says its name, when it is let."""

    def __init__(self, says, *, fails=False):
        self.says, self.fails = says, fails
        self.free = asyncio.Event()
        self.free.set()

    async def complete(self, body, bearer, received=None):
        await self.free.wait()
        if self.fails:
            raise RequestError(502, "upstream", "it fails")
        return UpstreamReply(reply=Reply(text=self.says), finish="stop")


class House:
    """A gateway with a shadow beside it."""

    def __init__(self, *, fails=False, state="shadow", percentage=0, **limits):
        self.seen, self.kept = [], []
        self.model = Model("shadow", fails=fails)
        self._database = Database(release=release(state, percentage=percentage))
        self._database.open = self._open
        rules = RulesReviewer(load_rulebook())
        own = replace(bundle("own"), upstream=Model("own"), pattern=draft_only, reviewer=rules)
        self.releases = ReleaseFollower(
            SingleBundle(Assignment(own)),
            self._database.ask,
            self._open,
            self._database.told,
            self._database.hold,
        )
        limits = {"at_once": 8, "per_minute": 100, **limits}
        self.shadows = Shadows(self.releases, [self.seen.append], **limits)
        book = DecisionLog(None, [self.kept.append, self.shadows.served])
        self.gateway = Gateway(selector=self.releases, decisions=book)

    async def _open(self, name):
        return replace(bundle(name), upstream=self.model, pattern=draft_only)

    async def ask(self, times=1, **changes):
        await self.releases.poll()
        answers = []
        for number in range(times):
            asked = structs.replace(request(f"user {number}"), **changes)
            answers += await self.gateway.answers(asked)
        return [answer.reply.text for answer in answers]

    async def rest(self):
        for _ in range(10):
            await asyncio.sleep(0)


def lived(work, **house):
    """Run `work(house)`; return the house."""

    async def live():
        made = House(**house)
        await work(made)
        await made.rest()
        await made.shadows.aclose()
        return made

    return asyncio.run(live())


def test_a_shadow_answers_too_and_only_its_listener_hears_of_it():
    async def work(house):
        assert await house.ask(3) == ["own"] * 3

    house = lived(work)
    assert [one.exchange.collaboration.final.text for one in house.seen] == ["shadow"] * 3
    assert {one.exchange.arm for one in house.seen} == {"shadow"}
    assert {one.exchange.collaboration.final.text for one in house.kept} == {"own"}


def test_an_answer_does_not_wait_for_the_shadow():
    async def work(house):
        house.model.free.clear()
        assert await asyncio.wait_for(house.ask(), 60) == ["own"]

    house = lived(work)
    assert [one.exchange.reason for one in house.seen] == ["cancelled"]


def test_beyond_what_it_may_cost_it_is_left_out_and_counted():
    async def work(house):
        house.model.free.clear()
        await house.ask(5)

    assert lived(work, at_once=2).shadows.left_out == 3
    assert lived(lambda house: house.ask(5), per_minute=4).shadows.left_out == 1


def test_a_shadow_that_fails_is_told_as_an_error_and_nothing_else():
    house = lived(lambda house: house.ask(), fails=True)
    assert [one.exchange.reason for one in house.seen] == ["upstream"]


def test_nothing_is_shadowed_that_its_client_pays_for_or_that_only_was_a_review_or_a_probe():
    assert lived(lambda house: house.ask(bearer="their own")).seen == []
    assert lived(lambda house: house.ask(only_review=True)).seen == []
    assert lived(lambda house: house.ask(is_probe=True)).seen == []


def test_there_is_no_shadow_in_a_canary():
    assert lived(lambda house: house.ask(), state="canary", percentage=0).seen == []


def test_of_a_draft_that_the_caller_has_the_shadow_says_what_it_would_have_left():
    draft = Reply(text="their own", origin="given")

    async def work(house):
        await house.releases.poll()
        for number in range(2):
            asked = request("ada")
            await house.gateway.review(asked, draft, number)

    house = lived(work)
    assert [one.exchange.collaboration.draft for one in house.seen] == [draft] * 2
    assert [one.number for one in house.seen] == [0, 1]
