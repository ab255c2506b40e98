from pathlib import Path

import pytest

from waltzrl.build.bundles import bundle_id
from waltzrl.config.gateway import BundleRecipe, bundle_table, load_bundle, load_gateway
from waltzrl.config.validation import validated
from waltzrl.errors import RecipeError

RECIPE = Path(__file__).parents[2] / "recipes" / "gateway.toml"
UPSTREAM = "upstream.url=http://localhost:8000/v1"


def load(*overrides, path=None, defaults=None, environ=None):
    return load_gateway(path, defaults or {}, overrides, environ or {})


def test_the_recipe_in_the_repository_is_read():
    recipe = load(path=RECIPE)
    assert recipe.upstream.url == "http://localhost:8000/v1"
    assert recipe.audit.folder == Path("runs/audit")


def test_variables_count_where_the_file_is_silent():
    environ = {"WALTZRL_SAFETY_THRESHOLD": "0.9", "WALTZRL_COACHING_TIMEOUT_MS": "500"}
    recipe = load(path=RECIPE, environ=environ)
    assert (recipe.threshold, recipe.review_timeout_ms) == (0.7, 10_000)
    assert load(UPSTREAM, environ=environ).threshold == 0.9


def test_what_is_set_counts_most():
    assert load("threshold=0.5", path=RECIPE, defaults={"threshold": 0.6}).threshold == 0.5


def test_a_kind_that_is_not_named_is_kept_no_longer_than_by_default():
    given = ("memory.url=sqlite:///m.db", "memory.retention_days.evaluations=30")
    days = load(UPSTREAM, *given).memory.retention_days
    assert (days.evaluations, days.coaching, days.training) == (30.0, 365.0, 365.0)


def test_streams_are_held_where_a_model_reviews():
    assert load(UPSTREAM).stream_mode == "window"
    model = ("stage=2", "feedback.model=guard")
    assert load(UPSTREAM, *model).stream_mode == "buffer"
    assert load(UPSTREAM, *model, "stream=window").stream_mode == "window"
    assert load(UPSTREAM, "observe_only=true").stream_mode == "audit"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "upstream"),
        (["upstream.folder=x", UPSTREAM], "url or a folder, not both"),
        ([UPSTREAM, "stage=2"], "stage 2 needs a feedback model"),
        ([UPSTREAM, "keys=3"], "keys: got 3, need a path"),
        ([UPSTREAM, "rules=3"], "rules: got 3, need a list"),
        ([UPSTREAM, "privacy.actions=3"], "privacy.actions: got 3, need a table"),
        ([UPSTREAM, "limits=3"], "limits: got 3, need a table of keys such as limits.max_active"),
        ([UPSTREAM, "treshold=0.5"], "did you mean 'threshold'"),
        ([UPSTREAM, "threshold=1.5"], "threshold"),
        ([UPSTREAM, "memory.url=m.db", "memory.retention_days.evals=3"], "retention_days.evals"),
    ],
)
def test_a_wrong_recipe_is_refused_with_a_reason(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load(*overrides)


def test_a_bundle_is_named_by_what_is_in_it():
    def name(*overrides):
        return bundle_id(load(UPSTREAM, *overrides).bundle)

    assert name() == name()
    assert name() == name("limits.max_active=5")
    assert len({name(), name("threshold=0.8"), name("max_rounds=2"), name("enabled=false")}) == 4


def test_a_bundle_comes_back_from_its_table_and_is_named_as_before():
    recipe = load(UPSTREAM, "stage=2", "feedback.model=guard", "threshold=0.8").bundle
    again = validated(BundleRecipe, bundle_table(recipe), "the table")
    assert again == recipe
    assert bundle_id(again) == bundle_id(recipe)


def test_a_candidate_says_only_what_differs_from_what_serves(tmp_path):
    serving = load(UPSTREAM, "threshold=0.8").bundle
    path = tmp_path / "candidate.toml"
    path.write_text("max_rounds = 2\n")
    candidate = load_bundle(path, serving, ["review_timeout_ms=100"])
    assert (candidate.threshold, candidate.max_rounds, candidate.review_timeout_ms) == (0.8, 2, 100)


def test_what_a_gateway_is_kept_with_is_no_part_of_a_bundle(tmp_path):
    path = tmp_path / "candidate.toml"
    path.write_text('keys = "keys.toml"\n')
    with pytest.raises(RecipeError, match="keys"):
        load_bundle(path, load(UPSTREAM).bundle, [])
