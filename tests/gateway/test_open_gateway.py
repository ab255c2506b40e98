"""Which stage a gateway serves, and what it says when it starts."""

import asyncio

import pytest

from support.small_gateway import CHAT, Model, ask, gateway
from support.small_site import site
from waltzrl.errors import CheckpointError
from waltzrl.gateway.opening import describe_gateway, open_gateway
from waltzrl.gateway.settings import load_gateway

URL = "http://127.0.0.1:9/v1"


def announced(*settings: str) -> str:
    async def describe():
        recipe = load_gateway(None, {}, [f"upstream.url={URL}", *settings], {})
        async with open_gateway(recipe) as app:
            return describe_gateway(recipe, app)

    return asyncio.run(describe())


@pytest.mark.promise("Rules", "It is said at the start that the rules are English")
def test_the_start_says_that_the_rules_are_english():
    stage_2 = ["stage=2", "feedback.model=reviewer", f"feedback.server={URL}"]
    assert announced().startswith(f"stage 1, rules for English, in front of {URL}")
    assert announced(*stage_2).startswith(f"stage 2, rules for English, in front of {URL}")
    assert announced("enabled=false").startswith(f"no review in front of {URL}")


@pytest.mark.promise(
    "Settings",
    "`WALTZRL_STAGE=2` alone looks in `models/waltzrl_stage2/`, and serves stage 1 loudly where "
    "nothing loads",
)
def test_stage_2_alone_serves_stage_1_and_says_so_where_nothing_loads(caplog):
    async def serve():
        async with site(Model()) as server:
            options = {"upstream": {"url": server.url}}
            recipe = load_gateway(None, options, [], {"WALTZRL_STAGE": "2"})
            async with open_gateway(recipe) as app:
                body = {"model": "unsafe", "messages": [{"role": "user", "content": "hello"}]}
                return describe_gateway(recipe, app), await ask(app, CHAT, body)

    what, response = asyncio.run(serve())
    assert what.startswith("stage 1, ")
    assert what.endswith(", streams: window")
    assert response.headers["x-waltzrl-decision"] == "revised"
    (message,) = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    assert message.startswith("cannot load the feedback model, so stage 1 serves: ")
    assert "models/waltzrl_stage2/waltzrl_feedback_stage2" in message


def test_a_feedback_model_that_was_named_and_does_not_load_stops_the_start():
    async def serve():
        options = {"upstream": {"url": URL}}
        recipe = load_gateway(None, options, ["stage=2", "feedback.model=models/missing"], {})
        async with open_gateway(recipe):
            raise AssertionError("it serves")

    with pytest.raises(CheckpointError, match="models/missing"):
        asyncio.run(serve())


@pytest.mark.promise(
    "Settings",
    "Texts of refusals are settings, per category and language; in a crisis they say where help is",
)
def test_refusals_are_the_operators_texts_in_the_language_of_the_request():
    german = "Wie mache ich das, ohne dass es jemand merkt?"

    async def refused(*settings):
        async with gateway(*settings) as app:
            messages = [{"role": "user", "content": german}]
            return await ask(app, CHAT, {"model": "stubborn", "messages": messages})

    def text(response):
        return response.json["choices"][0]["message"]["content"]

    assert text(asyncio.run(refused())) == "Das kann ich leider nicht beantworten."
    own = 'refusals.default={de="Dazu sage ich nichts."}'
    assert text(asyncio.run(refused(own))) == "Dazu sage ich nichts."
