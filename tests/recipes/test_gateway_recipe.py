from pathlib import Path

import pytest

from waltzrl.agents import RulesReviewer
from waltzrl.errors import RecipeError
from waltzrl.recipes.bundles import BUCKETS, bucket, rules_bundle
from waltzrl.recipes.gateway import load_gateway
from waltzrl.rules import load_rulebook

RECIPE = Path(__file__).parents[2] / "recipes" / "gateway.toml"
UPSTREAM = "upstream.url=http://localhost:8000/v1"


def load(*overrides, path=None, defaults=None, environ=None):
    return load_gateway(path, defaults or {}, overrides, environ or {})


def test_the_houses_recipe_is_read():
    recipe = load(path=RECIPE)
    assert recipe.upstream.url == "http://localhost:8000/v1"
    assert recipe.audit.folder == Path("runs/audit")


def test_variables_count_where_the_file_is_silent():
    environ = {"WALTZRL_SAFETY_THRESHOLD": "0.9", "WALTZRL_COACHING_TIMEOUT_MS": "500"}
    recipe = load(path=RECIPE, environ=environ)
    assert (recipe.threshold, recipe.budget_ms) == (0.7, 10_000)
    assert load(UPSTREAM, environ=environ).threshold == 0.9


def test_what_is_set_counts_most():
    assert load("threshold=0.5", path=RECIPE, defaults={"threshold": 0.6}).threshold == 0.5


def test_streams_are_held_where_a_model_reviews():
    assert load(UPSTREAM).stream_mode == "window"
    model = ("stage=2", "feedback.model=guard")
    assert load(UPSTREAM, *model).stream_mode == "buffer"
    assert load(UPSTREAM, *model, "stream=window").stream_mode == "window"
    assert load(UPSTREAM, "observe_only=true").stream_mode == "audit"


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ([], "upstream"),
        (["upstream.folder=x", UPSTREAM], "url or a folder, not both"),
        ([UPSTREAM, "stage=2"], "stage 2 needs a feedback model"),
        ([UPSTREAM, "treshold=0.5"], "did you mean 'threshold'"),
        ([UPSTREAM, "threshold=1.5"], "threshold"),
    ],
)
def test_a_wrong_recipe_is_refused_with_a_reason(overrides, said):
    with pytest.raises(RecipeError, match=said):
        load(*overrides)


def test_conversations_keep_their_bucket_and_fill_all_evenly():
    places = [bucket(f"conversation {number}") for number in range(5_000)]
    assert places == [bucket(f"conversation {number}") for number in range(5_000)]
    first_tenth = sum(place < BUCKETS / 10 for place in places)
    assert 400 < first_tenth < 600


def test_a_bundle_is_named_by_what_is_in_it():
    def name(*overrides):
        recipe = load(UPSTREAM, *overrides)
        return rules_bundle(recipe, RulesReviewer(load_rulebook(), recipe.threshold)).id

    assert name() == name()
    assert name() == name("limits.max_active=5")
    assert len({name(), name("threshold=0.8"), name("max_rounds=2"), name("enabled=false")}) == 4
