from pathlib import Path

import pytest

from waltzrl.agents import load_wording, save_wording
from waltzrl.errors import RecipeError
from waltzrl.foundation.validation import validate_table, yield_keys
from waltzrl.gateway.bundles import bundle_id
from waltzrl.gateway.pairs import pair_settings
from waltzrl.gateway.settings import (
    BundleRecipe,
    GatewayRecipe,
    bundle_table,
    explain_gateway,
    load_bundle,
    load_gateway,
)
from waltzrl.gateway.synonyms import SYNONYMS

RECIPE = Path(__file__).parents[2] / "recipes" / "gateway.toml"
UPSTREAM = "upstream.url=http://localhost:8000/v1"


def load(*overrides, path=None, defaults=None, environ=None):
    return load_gateway(path, defaults or {}, overrides, environ or {})


def test_the_recipe_in_the_repository_is_read():
    recipe = load(path=RECIPE)
    assert recipe.upstream.url == "http://localhost:8000/v1"
    assert recipe.audit.folder == Path("runs/audit")


@pytest.mark.promise(
    "Settings",
    "Environment variables override the file, and options override both; conflicts are logged",
)
def test_variables_override_the_file():
    environ = {"WALTZRL_GATEWAY_THRESHOLD": "0.9", "WALTZRL_COACHING_TIMEOUT_MS": "500"}
    recipe = load(path=RECIPE, environ=environ)
    assert (recipe.threshold, recipe.review_timeout_ms) == (0.9, 500)


@pytest.mark.promise("Settings", "`WALTZRL_STAGE=1` rolls back, whatever the file says")
def test_one_variable_rolls_a_file_with_stage_2_back(tmp_path, caplog):
    path = tmp_path / "gateway.toml"
    path.write_text(
        'stage = 2\n[upstream]\nurl = "http://h:1/v1"\n[feedback]\nmodel = "guard"\n', "utf-8"
    )
    assert load(path=path).stage == 2
    assert caplog.messages == []
    assert load(path=path, environ={"WALTZRL_STAGE": "1"}).stage == 1
    assert caplog.messages == [f"WALTZRL_STAGE: stage = 1 overrides 2 from {path}"]


@pytest.mark.promise(
    "Settings",
    "Environment variables override the file, and options override both; conflicts are logged",
)
def test_the_command_line_overrides_variables(caplog):
    environ = {"WALTZRL_GATEWAY_THRESHOLD": "0.9"}
    assert load(UPSTREAM, "threshold=0.5", environ=environ).threshold == 0.5
    assert caplog.messages == [
        "--set: threshold = 0.5 overrides 0.9 from WALTZRL_GATEWAY_THRESHOLD"
    ]
    assert load(UPSTREAM, defaults={"threshold": 0.6}, environ=environ).threshold == 0.6


def test_values_that_agree_are_no_conflict(caplog):
    load(path=RECIPE, environ={"WALTZRL_GATEWAY_THRESHOLD": "0.7", "WALTZRL_STAGE": "1"})
    assert caplog.messages == []


@pytest.mark.promise(
    "Settings",
    "`WALTZRL_STAGE=2` alone looks in `models/waltzrl_stage2/`, and serves stage 1 loudly where "
    "nothing loads",
)
def test_stage_2_alone_is_the_pair_of_the_default_folder():
    recipe = load(environ={"WALTZRL_STAGE": "2"})
    assert recipe.upstream.folder == "models/waltzrl_stage2/waltzrl_conversation_stage2"
    assert recipe.feedback.model == "models/waltzrl_stage2/waltzrl_feedback_stage2"
    assert (recipe.feedback.wording, recipe.on_load_failure) == ("plain", "stage1")
    assert recipe.on_failure == "rules"
    blocking = {"WALTZRL_STAGE": "2", "WALTZRL_FALLBACK_TO_BLOCKING": "true"}
    assert load(environ=blocking).on_failure == "refuse"
    behind = load(UPSTREAM, environ={"WALTZRL_STAGE": "2"})
    assert (behind.upstream.url, behind.upstream.folder) == ("http://localhost:8000/v1", None)
    assert behind.feedback.model == "models/waltzrl_stage2/waltzrl_feedback_stage2"


@pytest.mark.promise("Bad input", "A reviser beside a server, which has none")
def test_only_a_model_of_this_process_has_a_reviser():
    recipe = load(defaults={"upstream": {"folder": "agents", "reviser": "revisions"}})
    assert recipe.upstream.reviser == "revisions"
    with pytest.raises(RecipeError, match=r"reviser needs upstream\.folder"):
        load(UPSTREAM, "upstream.reviser=revisions")


def test_a_feedback_model_that_is_named_must_load():
    recipe = load(UPSTREAM, "feedback.model=guard", environ={"WALTZRL_STAGE": "2"})
    assert (recipe.feedback.model, recipe.on_load_failure) == ("guard", "stop")
    assert recipe.on_failure == "refuse"
    with pytest.raises(RecipeError, match="stage 2 needs a feedback model"):
        load(UPSTREAM, "stage=2", environ={"WALTZRL_STAGE": "1"})


def test_a_pair_is_both_agents_or_the_reviewer_of_another_model():
    both = load(defaults=pair_settings(Path("agents"), with_upstream=True))
    assert (both.stage, both.upstream.folder) == (2, "agents/waltzrl_conversation_stage2")
    reviewer = load(UPSTREAM, defaults=pair_settings(Path("agents"), with_upstream=False))
    assert reviewer.upstream.url == "http://localhost:8000/v1"
    assert reviewer.feedback.model == "agents/waltzrl_feedback_stage2"


@pytest.mark.promise(
    "Do no harm",
    "A pair is served with the prompts that it was trained with, and a package can bring one",
)
def test_a_pair_is_served_with_the_prompts_that_it_was_trained_with(tmp_path):
    assert load(defaults=pair_settings(tmp_path, with_upstream=True)).upstream.wording == "plain"
    save_wording(load_wording("short"), tmp_path / "wording")
    recipe = load(defaults=pair_settings(tmp_path, with_upstream=True))
    assert recipe.upstream.wording == recipe.feedback.wording == str(tmp_path / "wording")


@pytest.mark.promise("Settings", "`waltzrl serve --explain` prints each setting, value and origin")
def test_every_setting_is_explained_with_its_origin(tmp_path):
    path = tmp_path / "gateway.toml"
    path.write_text("threshold = 0.6\nmax_rounds = 2\n[limits]\nmax_active = 9\n", "utf-8")
    url = "http://ops:secret@localhost:8000/v1?key=hidden&v"
    settings = explain_gateway(
        path,
        {"upstream": {"url": url}},
        ["limits.max_waiting=7"],
        {"WALTZRL_MIN_SAFETY_SCORE": "1"},
    )
    explained = {setting.key: (setting.value, setting.origin) for setting in settings}
    assert explained["threshold"] == (1.0, "WALTZRL_MIN_SAFETY_SCORE")
    assert explained["max_rounds"] == (2, str(path))
    assert explained["limits.max_active"] == (9, str(path))
    assert explained["limits.max_waiting"] == (7, "--set")
    assert explained["upstream.url"] == (
        "http://ops:***@localhost:8000/v1?key=***&v=***",
        "command line",
    )
    assert explained["stage"] == (1, "default")
    assert explained["rules"][1] == "default"


def test_the_start_shows_no_query_of_an_upstream():
    recipe = load("upstream.url=http://ops:secret@localhost:8000/v1?key=hidden")
    assert recipe.upstream.name == "http://localhost:8000/v1"


@pytest.mark.promise(
    "Settings", "A variable that begins with `WALTZRL_` and sets nothing is named in a warning"
)
def test_a_variable_that_sets_nothing_is_named(caplog):
    own = {"WALTZRL_UPSTREAM_KEY_CLOUD": "k", "WALTZRL_CACHE": "c", "WALTZRL_MY_KEY": "k"}
    options = {"upstream": {"url": "http://localhost:8000/v1", "api_key_env": "WALTZRL_MY_KEY"}}
    load_gateway(None, options, [], {**own, "WALTZRL_TRESHOLD": "1"})
    assert caplog.messages == ["WALTZRL_TRESHOLD is no variable of the gateway and sets nothing"]


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
        ([], "no model to serve; use --upstream http://localhost:8000/v1, --pair FOLDER"),
        (["upstream.folder=x", UPSTREAM], "needs one of url, folder, specialists and program"),
        ([UPSTREAM, "stage=2"], "stage 2 needs a feedback model"),
        ([UPSTREAM, "keys=3"], "keys: got 3, need a path"),
        ([UPSTREAM, "rules=3"], "rules: got 3, need a list"),
        ([UPSTREAM, "privacy.actions=3"], "privacy.actions: got 3, need a table"),
        ([UPSTREAM, "limits=3"], "limits: got 3, need a table of keys such as limits.max_active"),
        ([UPSTREAM, "treshold=0.5"], "did you mean 'threshold'"),
        ([UPSTREAM, "safety_threshold=0.5"], "did you mean 'threshold'"),
        (["upstream.base_url=http://localhost:8000/v1"], "did you mean 'upstream.url'"),
        ([UPSTREAM, "TRAFFIC_PERCENTAGE=10"], "did you mean 'stage2_percentage'"),
        ([UPSTREAM, "threshold=1.5"], "threshold"),
        (
            [UPSTREAM, 'refusals.bombs={en="No."}'],
            "refusals: unknown category 'bombs'; use",
        ),
        ([UPSTREAM, 'refusals.default={en=""}'], "at least 1 character"),
        (
            [UPSTREAM, 'refusals.default={english="No."}'],
            "refusals.default.english: got 'english', need a text",
        ),
        ([UPSTREAM, "memory.url=m.db", "memory.retention_days.evals=3"], "retention_days.evals"),
        (["upstream.url=http://[::1/v1"], r"upstream\.url: Invalid IPv6 URL; use one such as"),
    ],
)
def test_a_wrong_recipe_is_refused_with_a_reason(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load(*overrides)


def test_every_synonym_is_of_a_key_that_there_is():
    assert SYNONYMS.keys() <= set(yield_keys(GatewayRecipe))


@pytest.mark.promise(
    "Rules",
    "Operators allow tool calls by tool and by rule, and what they allow is part of the bundle id",
)
def test_a_bundle_is_named_by_what_is_in_it():
    def name(*overrides):
        return bundle_id(load(UPSTREAM, *overrides).bundle)

    assert name() == name()
    assert name() == name("limits.max_active=5")
    assert len({name(), name("threshold=0.8"), name("max_rounds=2"), name("enabled=false")}) == 4
    allowed = {name(f'allow_calls=["{tool}"]') for tool in ("terraform", "bash")}
    assert len({name(), *allowed}) == 3
    assert name("allow_calls=[]") == name()


@pytest.mark.parametrize(
    ("overrides", "chosen"),
    [
        ((), "unavailable"),
        (("on_failure=rules",), "rules"),
        (("on_failure=serve",), "pass"),
        (("on_failure=serve", "review.on_overload=unavailable"), "unavailable"),
        (("review.on_overload=pass",), "pass"),
        (("observe_only=true",), "pass"),  # what is only observed is sent
    ],
)
def test_an_overload_is_told_unless_the_operator_chose_otherwise(overrides, chosen):
    assert load(UPSTREAM, *overrides).on_overload == chosen


def test_what_an_overload_means_is_part_of_the_name_of_a_bundle_that_says_so():
    def name(*overrides):
        return bundle_id(load(UPSTREAM, *overrides).bundle)

    assert len({name(), name("review.on_overload=pass"), name("review.on_overload=rules")}) == 3


def test_a_bundle_comes_back_from_its_table_and_is_named_as_before():
    recipe = load(UPSTREAM, "stage=2", "feedback.model=guard", "threshold=0.8").bundle
    again = validate_table(BundleRecipe, bundle_table(recipe), "the table")
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


def test_a_bundle_is_of_the_texts_in_a_folder_of_prompts(tmp_path):
    for part in ("conversation_system", "feedback_system"):
        (tmp_path / f"{part}.md").touch()
    (tmp_path / "review.md").write_text("{conversation} {reply}")
    ids = []
    for text in ("Mind {feedback}", "Please mind {feedback}"):
        (tmp_path / "revise.md").write_text(text)
        ids.append(bundle_id(load(UPSTREAM, f"upstream.wording={tmp_path}").bundle))
    assert ids[0] != ids[1]


def test_a_second_judge_needs_a_first():
    memory = 'memory.url="sqlite:///memory.db"'
    with pytest.raises(RecipeError, match=r"set memory\.judge too"):
        load(UPSTREAM, memory, 'memory.second_judge="llm:other@http://localhost:8003/v1"')
    both = [f'memory.{name}="llm:{name}@http://h:1/v1"' for name in ("judge", "second_judge")]
    assert load(UPSTREAM, memory, *both).memory.second_judge == "llm:second_judge@http://h:1/v1"
