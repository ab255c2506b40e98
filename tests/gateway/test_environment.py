from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import RecipeError
from waltzrl.gateway.environment import VARIABLES, environment_sources, warn_of_unknown
from waltzrl.gateway.settings import GatewayRecipe


def settings_from_environment(environ):
    return {key: value for s in environment_sources(environ) for key, value in s.table.items()}


def test_an_environment_without_our_variables_says_nothing():
    assert settings_from_environment({"PATH": "/bin", "WALTZRL_EPOCHS": "5"}) == {}


def test_the_contract_of_stage_2_becomes_settings():
    environ = {
        "WALTZRL_STAGE": "2",
        "ENABLE_WALTZRL": "true",
        "WALTZRL_GATEWAY_THRESHOLD": "0.9",
        "WALTZRL_FALLBACK_TO_BLOCKING": "false",
        "WALTZRL_TRAFFIC_PERCENTAGE": "25",
        "WALTZRL_FEEDBACK_ONLY": "no",
        "WALTZRL_COACHING_TIMEOUT_MS": "500",
    }
    assert settings_from_environment(environ) == {
        "stage": 2,
        "enabled": True,
        "threshold": 0.9,
        "on_failure": "rules",
        "stage2_percentage": 25.0,
        "observe_only": False,
        "review_timeout_ms": 500,
    }


@pytest.mark.parametrize(
    ("name", "text", "key", "value"),
    [
        ("WALTZRL_ENABLED", "OFF", "enabled", False),
        ("WALTZRL_MIN_SAFETY_SCORE", "1", "threshold", 1.0),
        ("WALTZRL_GATEWAY_ON_FAILURE", "serve", "on_failure", "serve"),
        ("WALTZRL_FALLBACK_TO_BLOCKING", "yes", "on_failure", "refuse"),
        ("WALTZRL_CANARY_PERCENTAGE", "0", "stage2_percentage", 0.0),
        ("WALTZRL_ROLLOUT_PERCENTAGE", "12.5", "stage2_percentage", 12.5),
        ("WALTZRL_ROLLOUT_PCT", " 100 ", "stage2_percentage", 100.0),
    ],
)
def test_every_other_name_is_read(name, text, key, value):
    assert settings_from_environment({name: text}) == {key: value}


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("WALTZRL_STAGE", "3", "WALTZRL_STAGE: got '3', need 1 or 2"),
        ("ENABLE_WALTZRL", "maybe", "ENABLE_WALTZRL: got 'maybe', need true or false"),
        ("WALTZRL_GATEWAY_THRESHOLD", "70", "need a number from 0 to 1"),
        ("WALTZRL_GATEWAY_ON_FAILURE", "block", "got 'block', need refuse, rules or serve"),
        ("WALTZRL_MIN_SAFETY_SCORE", "nan", "need a number from 0 to 1"),
        ("WALTZRL_TRAFFIC_PERCENTAGE", "-1", "need a number from 0 to 100"),
        ("WALTZRL_ROLLOUT_PCT", "25%", "WALTZRL_ROLLOUT_PCT: got '25%', need a number"),
        ("WALTZRL_COACHING_TIMEOUT_MS", "0", "need a whole number of milliseconds, 1 or more"),
        ("WALTZRL_COACHING_TIMEOUT_MS", "half", "need a whole number"),
        ("WALTZRL_ENABLE_BLOCKING", "false", "set WALTZRL_FEEDBACK_ONLY=true"),
        ("WALTZRL_BLOCK_UNSAFE", "0", "never sends a reply that it considers unsafe"),
    ],
)
def test_nonsense_is_reported_with_the_name_of_the_variable(name, text, complaint):
    with pytest.raises(RecipeError, match=name) as error:
        settings_from_environment({name: text})
    assert complaint in str(error.value)


def test_two_names_of_one_setting_may_agree():
    environ = {"ENABLE_WALTZRL": "true", "WALTZRL_ENABLED": "1"}
    assert settings_from_environment(environ) == {"enabled": True}


def test_two_names_of_one_setting_must_not_disagree():
    environ = {"WALTZRL_TRAFFIC_PERCENTAGE": "10", "WALTZRL_ROLLOUT_PCT": "50"}
    complaint = (
        "WALTZRL_TRAFFIC_PERCENTAGE=10 and WALTZRL_ROLLOUT_PCT=50 are the same setting but differ"
    )
    with pytest.raises(RecipeError, match=complaint):
        settings_from_environment(environ)


def test_variables_of_different_kinds_must_not_disagree_on_one_setting():
    environ = {"WALTZRL_GATEWAY_ON_FAILURE": "rules", "WALTZRL_FALLBACK_TO_BLOCKING": "true"}
    complaint = "WALTZRL_GATEWAY_ON_FAILURE=rules and WALTZRL_FALLBACK_TO_BLOCKING=true are the"
    with pytest.raises(RecipeError, match=complaint):
        environment_sources(environ)


@pytest.mark.promise("Settings", "The benchmark's variables set nothing and are warned of")
def test_variables_of_the_safety_benchmark_set_nothing_and_are_warned_of(caplog):
    environ = {"WALTZRL_SAFETY_THRESHOLD": "0.9", "WALTZRL_BLOCK_ON_FAILURE": "1"}
    assert settings_from_environment(environ) == {}
    warn_of_unknown(environ, ())
    assert caplog.messages == [
        "WALTZRL_BLOCK_ON_FAILURE is no variable of the gateway and sets nothing",
        "WALTZRL_SAFETY_THRESHOLD is no variable of the gateway and sets nothing",
    ]


def test_an_empty_variable_is_not_set():
    assert settings_from_environment({"WALTZRL_STAGE": "", "WALTZRL_ENABLED": " "}) == {}


def test_blocking_may_be_asked_for_and_changes_nothing():
    assert settings_from_environment({"WALTZRL_ENABLE_BLOCKING": "true"}) == {}


@given(
    st.dictionaries(
        st.sampled_from([name for variable in VARIABLES for name in variable.names]), st.text()
    )
)
def test_any_values_are_settings_or_an_error_for_people(environ):
    with suppress(RecipeError):
        assert set(settings_from_environment(environ)) <= {variable.key for variable in VARIABLES}


def test_every_setting_is_a_key_of_the_recipe():
    keys = {variable.key for variable in VARIABLES} - {None}
    assert keys <= set(GatewayRecipe.__dataclass_fields__)
