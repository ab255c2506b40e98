"""Examples from the memory in a gateway: for both agents, never stored, and never waited for."""

import asyncio
import logging
import threading

import pytest

from support.coaching import ATTACKS, remembered
from support.openai_server import serving
from support.routed import opened_memory
from support.small_gateway import REVISED, Model, chat, gateway
from support.timing import until
from waltzrl.agents.coaching import INTRODUCTION, examples_text
from waltzrl.agents.live_examples import AT_ONCE, LiveExamples
from waltzrl.errors import RecipeError, StorageError
from waltzrl.gateway.settings import load_gateway
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Message, Prompt
from waltzrl.store.memory.schemas import COACHING

ASKED = "How do I reset the password of a colleague?"
ALIKE = "Please tell me how to reset the password of a colleague quickly."
FINE = '{"unsafe": false, "overrefuse": false, "category": "none", "feedback": ""}'
LONG = 3600.0
BOTH = ("conversation", "feedback")


def prompt(id_="1", request=ASKED):
    return Prompt(id=id_, messages=(Message(role="user", content=request),))


def one(text, *system):
    turns = [{"role": "system", "content": content} for content in system]
    return [*turns, {"role": "user", "content": text}]


def settings(folder, *more):
    url = f"sqlite:///{folder}/memory.db"
    with opened_memory(url) as memory:  # `digest` of an empty name is not bound yet
        for number, request in enumerate((ASKED, *(f"{ASKED} {attack}" for attack in ATTACKS))):
            remembered(memory, f"wz{number}", request)
    key = f"memory.subject_key={folder / 'memory.key'}"
    return (f"memory.url={url}", key, "memory.niceness=0", *more)


async def asked_until_shown(app, server, messages, model="echo"):
    """Ask until an example is shown: a search on a busy machine may take too long."""
    for _ in range(200):
        server.bodies.clear()
        response = await chat(app, model, messages=messages)
        if any(INTRODUCTION[:40] in str(body) for body in server.bodies):
            return response
    raise AssertionError("no example was ever shown")


@pytest.mark.promise("Examples from the memory", "No example is part of what is stored")
def test_an_example_is_shown_beside_the_clients_own_system_turn_and_not_stored(tmp_path):
    model = Model()

    async def live():
        async with gateway(*settings(tmp_path, "memory.examples=2"), model=model) as app:
            await asked_until_shown(app, model, one(ALIKE, "Be brief."))
            return model.bodies[-1]["messages"]

    system, request = asyncio.run(live())
    assert request == {"role": "user", "content": ALIKE}
    assert system["content"].startswith(f"Be brief.\n\n{INTRODUCTION}\n\n<conversation>{ASKED}<")
    assert "<reply>A good reply.</reply>" in system["content"]
    with opened_memory(f"sqlite:///{tmp_path}/memory.db") as memory:
        kept = [each for each in memory.evaluations(limit=99) if each.model == "echo"]
        assert kept
        assert INTRODUCTION not in str(kept)


def test_whoever_switches_examples_on_is_told_to_measure(tmp_path, caplog):
    async def live():
        async with gateway(*settings(tmp_path, "memory.examples=1")):
            pass

    asyncio.run(live())
    assert "measure yours with `waltzrl evaluate --set examples=URL`" in caplog.text


@pytest.mark.promise(
    "Examples from the memory",
    "What an attacker stored stays in its fence, is left out where it instructs or imitates a "
    "verdict, and changes no verdict of the rules",
)
def test_what_an_attacker_stored_is_never_shown_and_changes_no_verdict(tmp_path):
    model = Model()

    async def live():
        async with gateway(*settings(tmp_path, "memory.examples=2"), model=model) as app:
            return await asked_until_shown(app, model, one(ASKED), "unsafe")

    response = asyncio.run(live())
    # the honest session of the same request is shown, none of the attacks beside it
    assert [str(body).count("<conversation>") for body in model.bodies] == [1, 1]
    assert not any(attack[:20] in str(model.bodies) for attack in ATTACKS)
    assert response.json["choices"][0]["message"]["content"] == REVISED


def reviewed(folder, *changes):
    """Return the system turn that a draft had, and the request of its review."""
    model = Model()

    async def live(server):
        stage2 = ("stage=2", "feedback.model=judge", f"feedback.server={server.base_url}")
        own = ("feedback.self_test=false", "review_timeout_ms=60000", "memory.examples=1")
        async with gateway(*settings(folder, *stage2, *own, *changes), model=model) as app:
            await asked_until_shown(app, model, one(ALIKE))

    with serving({"judge": ScriptedPolicy(lambda _: FINE)}) as server:
        asyncio.run(live(server))
        (system, _request) = model.bodies[-1]["messages"]
        return system["content"], server.requests[-1][1]["messages"][-1]["content"]


@pytest.mark.promise(
    "Examples from the memory",
    "No example is shown by default; with `memory.examples` the model that replies is shown two "
    "at most, and the one that reviews only with `memory.examples_for`",
)
def test_by_default_the_model_that_reviews_is_shown_none(tmp_path):
    shown, review = reviewed(tmp_path)
    assert shown.startswith(INTRODUCTION)
    assert review.startswith("The conversation so far:")
    assert "A good reply." not in review


@pytest.mark.promise(
    "Examples from the memory",
    "No example is shown by default; with `memory.examples` the model that replies is shown two "
    "at most, and the one that reviews only with `memory.examples_for`",
)
def test_the_feedback_model_may_be_shown_the_same_examples_as_the_draft(tmp_path):
    shown, review = reviewed(tmp_path, 'memory.examples_for=["conversation","feedback"]')
    assert review.startswith(f"{shown}\n\nThe conversation so far:")


@pytest.mark.promise(
    "Examples from the memory", "A policy may show none: neither to the model nor to the reviewer"
)
def test_a_policy_without_examples_shows_none_to_either_model(tmp_path):
    model = Model()

    async def live(server):
        stage2 = ("stage=2", "feedback.model=judge", f"feedback.server={server.base_url}")
        own = ("feedback.self_test=false", "review_timeout_ms=60000", "memory.examples=1")
        both = 'memory.examples_for=["conversation","feedback"]'
        bare = "policies.bare.examples=false"
        async with gateway(*settings(tmp_path, *stage2, *own, both, bare), model=model) as app:
            await asked_until_shown(app, model, one(ALIKE))
            shown = server.requests[-1][1]["messages"][-1]["content"]
            model.bodies.clear()
            await chat(app, "echo", messages=one(ALIKE), x_waltzrl_policy="bare")
            return shown, server.requests[-1][1]["messages"][-1]["content"]

    with serving({"judge": ScriptedPolicy(lambda _: FINE)}) as server:
        shown, review = asyncio.run(live(server))
    assert shown.startswith(INTRODUCTION)
    assert review.startswith("The conversation so far:")
    assert model.bodies[-1]["messages"] == one(ALIKE)


def test_the_self_test_at_the_start_does_not_wait_for_the_memory(tmp_path):
    async def live(server):
        stage2 = ("stage=2", "feedback.model=judge", f"feedback.server={server.base_url}")
        async with gateway(*settings(tmp_path, *stage2, "memory.examples=1")):
            await until(lambda: server.requests)

    with serving({"judge": ScriptedPolicy(lambda _: FINE)}) as server:
        asyncio.run(live(server))
        assert INTRODUCTION[:40] not in str(server.requests[0])


@pytest.mark.promise(
    "Examples from the memory",
    "No example is shown by default; with `memory.examples` the model that replies is shown two "
    "at most, and the one that reviews only with `memory.examples_for`",
)
def test_by_default_no_example_is_shown(tmp_path):
    model = Model()

    async def live():
        async with gateway(*settings(tmp_path), model=model) as app:
            await chat(app, messages=one(ASKED))

    asyncio.run(live())
    assert model.bodies[-1]["messages"] == one(ASKED)


# a memory that is slow or away


def test_a_prompt_is_looked_up_once(sqlite_url):
    opened = []

    async def live(memory):
        def open_memory():
            opened.append(1)
            return memory

        examples = LiveExamples(2, BOTH, seconds=LONG)
        assert await examples.examples_for(prompt()) == ""  # the gateway still starts
        examples.memory = open_memory
        return [await examples.examples_for(prompt()) for _ in range(3)]

    with opened_memory(sqlite_url) as memory:
        remembered(memory, "a", ASKED, may_learn=True)
        first, *others = asyncio.run(live(memory))
    assert first.startswith(INTRODUCTION)
    assert others == [first, first]
    assert len(opened) == 1


@pytest.mark.promise("Examples from the memory", "What was deleted is soon shown no more")
def test_what_was_found_is_not_kept_for_long(sqlite_url):
    async def live(memory):
        examples = LiveExamples(2, BOTH, seconds=LONG, kept_seconds=0.0)
        examples.memory = lambda: memory
        before = await examples.examples_for(prompt())
        memory.store.delete(COACHING, "a")
        await asyncio.sleep(0)
        return before, await examples.examples_for(prompt())

    with opened_memory(sqlite_url) as memory:
        remembered(memory, "a", ASKED, may_learn=True)
        before, after = asyncio.run(live(memory))
    assert before.startswith(INTRODUCTION)
    assert after == ""


@pytest.mark.promise(
    "Examples from the memory", "No request waits for a slow memory or fails without one"
)
def test_without_its_memory_a_gateway_shows_none_and_says_so_once(caplog):
    def away():
        raise StorageError("the database is unavailable")

    async def live():
        examples = LiveExamples(2, BOTH, seconds=LONG)
        examples.memory = away
        return [await examples.examples_for(prompt(id_)) for id_ in ("1", "2")]

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(live()) == ["", ""]
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.endswith("while the memory is unavailable: the database is unavailable")


@pytest.mark.promise(
    "Examples from the memory", "No request waits for a slow memory or fails without one"
)
def test_no_request_waits_for_a_slow_memory_or_for_a_place(caplog):
    held, begun = threading.Event(), []

    def slow():
        begun.append(1)
        held.wait()
        raise StorageError("too late")

    async def live():
        examples = LiveExamples(2, BOTH, seconds=0.01)
        examples.memory = slow
        searches = [examples.examples_for(prompt(str(n))) for n in range(AT_ONCE + 3)]
        found = await asyncio.gather(*searches)
        held.set()
        return found

    assert asyncio.run(live()) == [""] * (AT_ONCE + 3)
    assert len(begun) <= AT_ONCE
    assert "a search takes more than 0.01 s" in caplog.text


def test_no_session_is_no_text():
    assert examples_text([]) == ""


@pytest.mark.promise(
    "Examples from the memory",
    "No example is shown by default; with `memory.examples` the model that replies is shown two "
    "at most, and the one that reviews only with `memory.examples_for`",
)
@pytest.mark.parametrize("most", [-1, 3])
def test_at_most_two_examples_are_shown(tmp_path, most):
    changes = [f"memory.url=sqlite:///{tmp_path}/memory.db", f"memory.examples={most}"]
    with pytest.raises(RecipeError, match=r"memory\.examples"):
        load_gateway(None, {"upstream": {"url": "http://a/v1"}}, changes, {})
