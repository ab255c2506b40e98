import asyncio
import json
import re

import pytest

from support.small_gateway import Model, ask, chat
from support.small_runs import run
from support.small_site import site
from waltzrl.errors import InputError
from waltzrl.gateway.bundles import bundle_id
from waltzrl.gateway.opening import open_gateway
from waltzrl.gateway.settings import load_gateway
from waltzrl_routing import load_registry
from waltzrl_specialists.commands import serving_options

CHOSEN_BY_MODEL = pytest.mark.promise(
    "Specialists",
    "A request's model chooses the specialist, and every reply is reviewed, also that of the "
    "fallback",
)

SHORT = "upstream.max_new_tokens=32"


def served(folder, work, fallback_model="echo"):
    """Run `work(app, model)` on a gateway in front of the specialists, with a fallback."""

    async def run():
        async with site(Model()) as server:
            options = serving_options(folder, server.url, fallback_model)
            async with open_gateway(load_gateway(None, options, [SHORT], {})) as app:
                return await work(app, server)

    return asyncio.run(run())


def text(response):
    return response.json["choices"][0]["message"]["content"]


@CHOSEN_BY_MODEL
def test_the_models_name_chooses_the_specialist_and_each_reply_is_reviewed(trained):
    folder, _ = trained

    async def work(app, _server):
        asked = [{"role": "user", "content": "fox?"}]
        names = ("heavy", "light", "heavy")
        replies = [await chat(app, name, messages=asked) for name in names]
        streamed = await chat(app, "light", messages=asked, stream=True)
        listed = await ask(app, "/v1/models", method="GET")
        metrics = await ask(app, "/metrics", method="GET")
        return replies, streamed, listed, metrics.text

    replies, streamed, listed, metrics = served(folder, work)
    assert [text(reply) for reply in replies] == [
        "Weight: tons\nok",
        "Weight: grams\nok",
        "Weight: tons\nok",
    ]
    assert "grams" in streamed.text
    assert {"heavy", "light"} <= {model["id"] for model in listed.json["data"]}
    (reviews,) = re.findall(r"^waltzrl_feedback_time_ms_count\S* (\S+)$", metrics, re.M)
    assert float(reviews) >= 4


@CHOSEN_BY_MODEL
def test_what_no_specialist_can_answer_goes_to_the_fallback_under_its_own_name(trained):
    folder, _ = trained

    async def work(app, _server):
        unknown = await chat(app, "gardening")
        too_long = await chat(app, "heavy", messages=[{"role": "user", "content": "fox? " * 90}])
        return text(unknown), text(too_long)

    assert served(folder, work) == ("You said hello.", "You said hello.")
    # A draft of the fallback is reviewed too.
    refusal = "Sorry, I can't help with that."
    assert served(folder, work, "unsafe") == (refusal, refusal)


def test_without_a_fallback_the_specialists_are_named(trained):
    folder, _ = trained

    async def run():
        options = serving_options(folder, None, None)
        async with open_gateway(load_gateway(None, options, [SHORT], {})) as app:
            return await chat(app, "gardening")

    response = asyncio.run(run())
    assert response.status == 404
    assert response.error == "there is no specialist 'gardening'; use heavy, light"


@pytest.mark.promise("Specialists", "The router knows every trained specialist")
def test_the_router_knows_every_trained_specialist(trained, tmp_path, capsys):
    folder, _ = trained
    tasks = tmp_path / "tasks.json"
    task = {"id": "weigh", "type": "light", "description": "fox?"}
    tasks.write_text(json.dumps({"version": 1, "tasks": [task]}))
    assert run("route", tasks, "--agents", folder / "agents.json", "--json") == 0
    assert json.loads(capsys.readouterr().out)["assignments"] == {"weigh": "light"}
    registry = load_registry(folder / "agents.json")
    assert [agent.agent_name for agent in registry.agents] == ["heavy", "light"]
    assert registry.safety_critical == ("heavy", "light")


def test_a_bundle_is_of_these_adapters(trained):
    folder, _ = trained
    options = serving_options(folder, None, None)
    recipe = load_gateway(None, options, [], {}).bundle
    first = bundle_id(recipe)
    told = folder / "heavy" / "specialist.json"
    before = told.read_bytes()
    try:
        told.write_bytes(before.replace(b"Weigh it.", b"Count it."))
        assert bundle_id(recipe) != first
    finally:
        told.write_bytes(before)
    assert bundle_id(recipe) == first


def test_a_fallback_needs_the_name_of_its_model():
    with pytest.raises(InputError, match="give both --fallback URL and --fallback-model NAME"):
        serving_options("runs", "http://localhost:8000/v1", None)
