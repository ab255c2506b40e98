"""A whole gateway with a memory: what it remembers, and how it follows a release."""

import asyncio
import json
import logging
import re
import sqlite3
from collections import Counter
from dataclasses import replace
from importlib.resources import files

import pytest

from support.small_gateway import UNSAFE, Model, ask, chat, gateway, listening
from support.timing import until
from waltzrl.budget import ledgers_in, read_ledger
from waltzrl.errors import InputError
from waltzrl.gateway.keys import add_key
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.opening import propose_release, read_stored_recipe
from waltzrl.operations.release.plan import ReleaseLimits, ReleasePlan, ReleaseStep
from waltzrl.store.audit.contents import read_collaborations
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.database import open_database
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.store import MemoryStore
from waltzrl_verify.opening import TIMED, VerificationSettings, verify_gateway

ADDRESS = "ada@example.com"
DECISION = "/v1/release/decision"
FEEDBACK = "/v1/feedback"
ALL = ReleasePlan(
    name="test",
    shadow=None,
    canary=(ReleaseStep(percentage=100, seconds=3600, samples=1000),),
    targets=ReleaseLimits(unsafe=0.1, overrefusal=0.1),
    limits=ReleaseLimits(unsafe=0.1, overrefusal=0.1),
)
SHADOW = ReleasePlan(
    name="test",
    shadow=ReleaseStep(percentage=100, seconds=3600, samples=1000),
    canary=ALL.canary,
    targets=ALL.targets,
    limits=ALL.limits,
)


class House:
    """A gateway on a SQLite file, and the book of releases on the same."""

    def __init__(self, folder):
        self.folder = folder
        self.database = folder / "memory.db"
        self.settings = (
            f"memory.url=sqlite:///{self.database}",
            f"memory.subject_key={folder / 'memory.key'}",
            "memory.niceness=0",
            f"audit.folder={folder / 'audit'}",
        )

    @property
    def book(self):
        return ReleaseBook(open_database(f"sqlite:///{self.database}"))

    def propose(self, plan, **changes):
        """Release a bundle that differs from the one that serves."""
        book = self.book
        recipe = replace(read_stored_recipe(book, book.base()), **changes)
        return propose_release(book, recipe, plan, "ada", "a test")

    def rows(self, namespace):
        with sqlite3.connect(self.database) as connection:
            found = connection.execute(
                "select value from items where namespace = ?", (f"safety.waltzrl.{namespace}",)
            ).fetchall()
        connection.close()
        return [json.loads(value) for (value,) in found]

    def notices(self):
        return [e.notice for e in read_entries(self.folder / "audit") if e.event == "notice"]


def test_what_was_served_is_remembered_without_personal_data(tmp_path):
    house = House(tmp_path)
    asked = [{"role": "user", "content": f"my address is {ADDRESS}"}]

    async def live():
        async with gateway(*house.settings, "audit.contents=true") as app:
            await chat(app, "unsafe", messages=asked, user="user-17")
            await chat(app, "echo", messages=asked)

    asyncio.run(live())
    evaluations = house.rows("evaluations")
    assert sorted(one["decision"] for one in evaluations) == ["draft", "revised"]
    assert len(house.rows("coaching")) == 1
    for file in (house.database, *tmp_path.glob("audit/*")):
        assert ADDRESS.encode() not in file.read_bytes()
        assert b"user-17" not in file.read_bytes()
    said = [one.prompt.messages[-1].content for _, one in read_collaborations(tmp_path / "audit")]
    assert said == ["my address is [REDACTED:email]"] * 2


def test_what_verifies_a_gateway_is_audited_and_charged_and_not_remembered(tmp_path):
    house, keys = House(tmp_path), tmp_path / "keys.toml"
    prober = add_key(keys, {"name": "on-call", "may_probe": True})
    client = add_key(keys, {"name": "shop"})
    settings = (f"keys={keys}", f"budget.folder={tmp_path / 'costs'}")
    checked = VerificationSettings(sets={}, model="echo")
    refused = []

    async def live():
        async with gateway(*house.settings, *settings) as app, listening(app) as (host, port):
            url = f"http://{host}:{port}/v1"
            result = await verify_gateway(url, prober, checked)
            await chat(app, "echo", key=client)
            refused.append(await chat(app, "echo", key=client, x_waltzrl_probe="yes"))
            counts = (await ask(app, "/metrics", method="GET")).text
            return result, counts

    result, counts = asyncio.run(live())
    assert result.passed, result.checks
    (evaluation,) = house.rows("evaluations")
    assert (evaluation["who"], evaluation["probe"]) == ("shop", False)
    assert (refused[0].status, "may not send probes" in refused[0].text) == (403, True)
    decisions = [e.decision for e in read_entries(tmp_path / "audit") if e.decision]
    assert [(one.who, one.probe) for one in decisions[-2:]] == [("on-call", True), ("shop", False)]
    reviews = TIMED + 3  # a greeting, and two replies to a crisis
    assert len(decisions) == reviews + 2  # one reply, and the client's
    charged = Counter(charge.key for charge in read_ledger(*ledgers_in(tmp_path / "costs")).charges)
    assert charged == {"on-call": reviews + 1, "shop": 1}
    served = re.findall(r'requests_total\{api="chat".*\} (\d+)', counts)
    assert served == ["1"]


@pytest.mark.promise(
    "Labels",
    "Labels are events of people: none overwrites another, and a withdrawal is one too; the audit "
    "log has each, without texts",
)
def test_labels_and_withdrawals_are_in_the_audit_log_without_texts(tmp_path):
    house = House(tmp_path)
    texts = {"comment": "He lives by the old mill.", "correction": "Ask at the old mill."}
    label = LabelEvent(by="olga", reply="unsafe", request="harmful", **texts)

    async def live():
        async with gateway(*house.settings) as app:
            await chat(app, "echo")
            await until(lambda: house.rows("evaluations"))
            engine = open_database(house.settings[0].partition("=")[2])
            memory = SafetyMemory(MemoryStore(engine, scrub=str), str, {}, {})
            (served,) = memory.evaluations(limit=1)
            for event in (label, LabelEvent(by="olga", action="withdraw")):
                await asyncio.to_thread(memory.label, served.id, event)
            engine.dispose()
            await until(lambda: len(house.notices()) == 2)
            return served.id

    served_id = asyncio.run(live())
    first, second = house.notices()
    assert first == {
        "kind": "label", "evaluation": served_id, "action": "label", "by": "olga",
        "reply": "unsafe", "request": "harmful", "corrected": True, "commented": True,
    }  # fmt: skip
    assert (second["action"], second["by"]) == ("withdraw", "olga")
    for file in tmp_path.glob("audit/*"):
        assert b"old mill" not in file.read_bytes()


@pytest.mark.promise(
    "Command line",
    "A user's thumb is kept with the reply that it is about, only for the key that asked, and "
    "counted with an interval",
)
@pytest.mark.promise(
    "Requirements",
    "release gates: feedback trigger rate, latency, critical incidents, satisfaction",
)
def test_thumbs_are_kept_with_the_reply_that_they_are_about(tmp_path):
    house = House(tmp_path)
    keys = [add_key(tmp_path / "keys.toml", {"name": name}) for name in ("shop", "other")]

    async def live():
        async with gateway(*house.settings, f"keys={tmp_path / 'keys.toml'}") as app:

            async def rate(key, body):
                return await ask(app, FEEDBACK, body, authorization=f"Bearer {key}")

            answered = await chat(app, "echo", key=keys[0], x_request_id="mine")
            answer = answered.headers["x-waltzrl-id"]  # a client's own id need not be unique
            await until(lambda: house.rows("evaluations"))
            rated = await rate(keys[0], {"id": answer, "thumb": "up"})
            assert (rated.status, rated.json["thumb"]) == (200, "up")
            assert (await rate(keys[1], {"id": answer, "thumb": "down"})).status == 404
            unknown = await rate(keys[0], {"id": "mine", "thumb": "up"})
            assert (unknown.status, unknown.json["error"]["param"]) == (404, "id")
            invalid = await rate(keys[0], {"id": answer, "thumb": 5})
            assert (invalid.status, invalid.json["error"]["param"]) == (400, "thumb")
        async with gateway() as app:  # without a memory there is nowhere to keep it
            assert (await ask(app, FEEDBACK, {"id": answer, "thumb": "up"})).status == 404

    asyncio.run(live())
    assert [row["thumb"] for row in house.rows("evaluations")] == ["up"]


def test_a_second_key_of_names_is_refused(tmp_path):
    house = House(tmp_path)

    async def serve(*settings):
        async with gateway(*house.settings, *settings):
            pass

    asyncio.run(serve())
    other = f"memory.subject_key={tmp_path / 'other.key'}"
    with pytest.raises(InputError, match=r"other\.key is not the key under which .* keeps names"):
        asyncio.run(serve(other))
    asyncio.run(serve())


def test_consent_is_the_clients_to_give_or_not(tmp_path):
    house = House(tmp_path)

    async def live():
        async with gateway(*house.settings, 'memory.consent="asked"') as app:
            for said in ({}, {"x_waltzrl_learn": "yes"}, {"x_waltzrl_learn": "no"}):
                await chat(app, **said)
        async with gateway(*house.settings) as app:  # consent is assumed
            for word in ("", "No", "false", "nein", "Yes"):
                await chat(app, **({"x_waltzrl_learn": word} if word else {}))

    asyncio.run(live())
    found = sorted(house.rows("evaluations"), key=lambda row: row["time"])
    assert [one["may_learn"] for one in found[:3]] == [False, True, False]
    assert [one["may_learn"] for one in found[3:]] == [True, False, False, False, True]


def test_a_key_that_says_no_is_not_overruled_by_its_client(tmp_path):
    house = House(tmp_path)
    keys = tmp_path / "keys.toml"
    key = add_key(keys, {"name": "ada", "may_learn": False})

    async def live():
        async with gateway(*house.settings, f"keys={keys}") as app:
            await chat(app, key=key, x_waltzrl_learn="yes")

    asyncio.run(live())
    assert [one["may_learn"] for one in house.rows("evaluations")] == [False]


def test_where_a_release_stands_is_for_keys_with_a_role(tmp_path):
    house = House(tmp_path)
    keys = tmp_path / "keys.toml"
    client, viewer = add_key(keys, {"name": "c"}), add_key(keys, {"name": "v", "role": "viewer"})

    async def live():
        async with gateway(*house.settings, f"keys={keys}") as app:
            return [
                await ask(app, DECISION, method="GET", authorization=f"Bearer {key}")
                for key in (client, viewer)
            ]

    refused, told = asyncio.run(live())
    assert (refused.status, told.status, told.json["state"]) == (403, 200, "off")


def test_a_candidate_that_cannot_be_loaded_is_held_and_the_history_says_why(tmp_path, caplog):
    house = House(tmp_path)
    rules = tmp_path / "mine.toml"
    rules.write_text((files("waltzrl.agents.rules") / "packs/crime.toml").read_text())

    async def live():
        async with gateway(*house.settings):
            pass  # the database knows what serves
        release = house.propose(ALL, rules=(str(rules),))
        rules.unlink()
        async with gateway(*house.settings) as app:
            await until(lambda: "action hold" in caplog.text)  # it has heard of it itself
            assert app.gateway.selector.percentage == 0
            assert (await chat(app)).status == 200
        return release

    release = asyncio.run(live())
    last = house.book.history(release.id)[-1]
    assert (last.action, last.by) == ("hold", "waltzrl")
    assert f"cannot serve the candidate: {rules}" in last.why
    assert house.notices()[-1]["action"] == "hold"


def test_a_release_is_followed_and_a_rollback_is_in_force_within_a_second(tmp_path, caplog):
    house = House(tmp_path)

    async def live():
        async with gateway(*house.settings) as app:
            roster = app.gateway.selector
            own = roster.serving().id
            release = await asyncio.to_thread(house.propose, ALL, enabled=False)
            await until(lambda: roster.state == "canary")
            assert UNSAFE in (await chat(app, "unsafe")).text, "the candidate reviews nothing"
            decision = await ask(app, DECISION, method="GET")
            assert (decision.json["state"], decision.json["percentage"]) == ("canary", 100.0)
            metrics = (await ask(app, "/metrics", method="GET")).text
            assert 'waltzrl_release{state="canary"} 1.0' in metrics
            await asyncio.to_thread(house.book.move, release, "roll_back", "ada", "it is a test")
            await until(lambda: roster.state == "rolled_back")
            metrics = (await ask(app, "/metrics", method="GET")).text
            assert 'waltzrl_release{state="rolled_back"} 1.0' in metrics
            moved = 'waltzrl_release_moved_timestamp_seconds{action="roll_back",by='
            when = float(metrics.partition(f'{moved}"person"}} ')[2].splitlines()[0])
            assert when == house.book.last_moves()["roll_back", "person"]
            assert f'{moved}"itself"}} 0.0' in metrics
            assert UNSAFE not in (await chat(app, "unsafe")).text
            assert roster.serving().id == own

    with caplog.at_level(logging.WARNING):
        asyncio.run(live())
    assert [(one["action"], one["why"]) for one in house.notices()] == [
        ("propose", "without the gate: a test"),
        ("roll_back", "it is a test"),
    ]
    assert [row["arm"] for row in house.rows("evaluations")] == ["candidate", ""]


def test_a_shadow_is_remembered_and_never_seen(tmp_path):
    house = House(tmp_path)

    async def live():
        async with gateway(*house.settings) as app:
            await asyncio.to_thread(house.propose, SHADOW, enabled=False)
            await until(lambda: app.gateway.selector.shadow is not None)
            assert UNSAFE not in (await chat(app, "unsafe")).text
            await until(lambda: len(house.rows("evaluations")) == 2)

    asyncio.run(live())
    arms = {row["arm"]: row["decision"] for row in house.rows("evaluations")}
    assert arms == {"serving": "revised", "shadow": "draft"}


def test_each_reply_of_a_guardrail_request_is_remembered(tmp_path):
    house = House(tmp_path)

    async def live():
        async with gateway(*house.settings) as app:
            body = {"input_type": "response", "texts": ["Paris.", "Rome."]}
            await ask(app, "/beta/litellm_basic_guardrail_api", body)

    asyncio.run(live())
    drafts = [row["collaboration"]["draft"]["text"] for row in house.rows("evaluations")]
    assert sorted(drafts) == ["Paris.", "Rome."]


def test_the_desk_is_part_of_the_gateway(tmp_path):
    house = House(tmp_path)

    async def live():
        async with gateway(*house.settings) as app:
            return await ask(app, "/desk/login", method="GET")

    assert "<form" in asyncio.run(live()).text


def test_without_a_memory_there_is_no_release_and_another_machine_gets_no_desk(tmp_path):
    async def live():
        async with gateway(model=Model()) as app:
            paths = ("/desk", "/desk/collaborations", DECISION)
            return [(await ask(app, path, method="GET")).status for path in paths]

    assert asyncio.run(live()) == [403, 403, 404]


def test_a_database_that_is_away_stops_no_answer(tmp_path, caplog):
    settings = (
        "memory.url=postgresql://nobody@127.0.0.1:9/none",
        f"memory.subject_key={tmp_path / 'memory.key'}",
        "memory.niceness=0",
    )

    async def live():
        async with gateway(*settings) as app:
            assert (await chat(app)).status == 200
            assert (await ask(app, DECISION, method="GET")).status == 503
            assert (await ask(app, "/desk/login", method="GET")).status == 200

    asyncio.run(live())
    assert "database" in caplog.text
