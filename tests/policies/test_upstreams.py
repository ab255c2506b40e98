"""The upstreams of a recipe: what is refused at the start, and what a bundle's id holds."""

import pytest

from waltzrl.errors import RecipeError
from waltzrl.gateway.bundles import bundle_id
from waltzrl.gateway.settings import load_gateway

URL = "http://localhost:8000/v1"


def load(*overrides, **tables):
    return load_gateway(None, {"upstream": {"url": URL}, **tables}, overrides, {})


def problem(*overrides, **tables):
    with pytest.raises(RecipeError) as raised:
        load(*overrides, **tables)
    return str(raised.value)


def test_a_recipe_names_servers_their_models_and_fallbacks():
    cheap = {"url": URL, "models": ["gpt-*"], "fallback": "upstream", "retries": 2}
    recipe = load("upstreams.cheap.timeout_seconds=5", upstreams={"cheap": cheap})
    server = recipe.bundle.upstreams["cheap"]
    assert (server.models, server.fallback, server.retries) == (("gpt-*",), "upstream", 2)
    assert (server.timeout_seconds, server.api_key_env) == (5.0, None)


@pytest.mark.parametrize(
    ("upstreams", "overrides", "message"),
    [
        (
            {},
            ["upstream.fallback=cheap"],
            "upstream has the fallback 'cheap'; need one of upstream",
        ),
        ({"a": {"fallback": "b"}}, [], "a has the fallback 'b'; need one of upstream, a"),
        ({"a": {"fallback": "a"}}, [], "the fallbacks of a are a circle"),
        (
            {"a": {"fallback": "b"}, "b": {"fallback": "upstream"}},
            ["upstream.fallback=a"],
            "the fallbacks of upstream are a circle",
        ),
        ({"upstream": {}}, [], "upstreams.upstream: this name is that of [upstream]"),
        ({"Ab": {}}, [], "upstreams.Ab: got 'Ab', need a text of the form"),
        ({"a": {"retries": 11}}, [], "upstreams.a.retries: got 11"),
        ({"a": {"model": ["x"]}}, [], "did you mean 'upstreams.a.models'?"),
    ],
)
def test_a_recipe_that_cannot_work_is_refused_at_the_start(upstreams, overrides, message):
    named = {name: {"url": URL, **table} for name, table in upstreams.items()}
    assert message in problem(*overrides, upstreams=named)


def test_a_named_server_needs_a_url():
    assert "upstreams.a.url is missing" in problem(upstreams={"a": {"models": ["x"]}})


def test_a_bundles_id_knows_its_servers():
    plain = bundle_id(load().bundle)
    changed = [
        load("upstream.retries=1"),
        load(upstreams={"a": {"url": URL}}),
        load(upstreams={"a": {"url": URL, "models": ["x"]}}),
        load("upstream.fallback=a", upstreams={"a": {"url": URL}}),
    ]
    assert len({plain, *(bundle_id(recipe.bundle) for recipe in changed)}) == 5
    assert bundle_id(load("upstream.retries=0", upstreams={}).bundle) == plain
