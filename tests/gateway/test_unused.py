"""A setting that another one switches off is told, and what to change."""

import logging
from pathlib import Path

import pytest

from waltzrl.gateway.settings import load_bundle, load_gateway

UPSTREAM = {"upstream": {"url": "http://localhost:8000/v1"}}
FOLDER = {"upstream": {"folder": "models/m"}}
STAGE_1 = "because stage is 1, in which only rules review; set stage = 2"


def told(caplog, *settings, options=None, path=None, environ=None):
    """Return the lines about settings without effect, with their levels."""
    caplog.clear()
    caplog.set_level(logging.INFO)
    load_gateway(path, options or UPSTREAM, settings, environ or {})
    return [
        (record.levelname, record.getMessage().removeprefix("no effect: "))
        for record in caplog.records
        if record.getMessage().startswith("no effect: ")
    ]


@pytest.mark.promise("Settings", "A setting that another one switches off is named at the start")
@pytest.mark.promise(
    "Bad input",
    "A setting of a gateway that another one switches off, such as `feedback.model` in stage 1: "
    "in a warning at the start: the settings, who gave them, and what to change; the gateway "
    "serves",
)
def test_a_feedback_model_without_stage_2_is_told(caplog):
    settings = ("feedback.model=guard", "feedback.server=http://localhost:8001/v1")
    assert told(caplog, *settings) == [
        ("WARNING", f"feedback.model (--set), feedback.server (--set), {STAGE_1}")
    ]
    assert told(caplog, *settings, "stage=2") == []


def test_a_file_that_says_stage_1_above_its_feedback_model_is_told(caplog, tmp_path):
    path = tmp_path / "gateway.toml"
    path.write_text('stage = 1\n[feedback]\nmodel = "guard"\n')
    assert told(caplog, path=path) == [("WARNING", f"feedback.model ({path}), {STAGE_1}")]


def test_what_a_variable_rolls_back_is_no_warning(caplog):
    settings = ("feedback.model=guard", "stage=2")
    environ = {"WALTZRL_STAGE": "1"}
    assert told(caplog, *settings, environ=environ) == []  # --set overrides the variable
    assert told(caplog, "feedback.model=guard", environ=environ) == [
        ("INFO", f"feedback.model (--set), {STAGE_1}")
    ]


def test_a_share_of_the_traffic_for_stage_2_without_stage_2_is_told(caplog):
    environ = {"WALTZRL_TRAFFIC_PERCENTAGE": "10"}
    assert told(caplog, environ=environ) == [
        ("WARNING", f"stage2_percentage (WALTZRL_TRAFFIC_PERCENTAGE), {STAGE_1}")
    ]


REVIEWED = ("stage=2", "feedback.model=guard")
GUARDED = (*REVIEWED, "feedback.guard=qwen3guard", "feedback.server=http://localhost:8001/v1")


@pytest.mark.promise("Settings", "A setting that another one switches off is named at the start")
@pytest.mark.promise(
    "Bad input",
    "A setting of a gateway that another one switches off, such as `feedback.model` in stage 1: "
    "in a warning at the start: the settings, who gave them, and what to change; the gateway "
    "serves",
)
@pytest.mark.parametrize(
    ("options", "settings", "unused", "because"),
    [
        (UPSTREAM, ("on_failure=rules",), "on_failure", "stage is 1"),
        (UPSTREAM, ("enabled=false", "threshold=0.9"), "threshold", "enabled is false"),
        (UPSTREAM, (*REVIEWED, "enabled=false"), "stage", "enabled is false"),
        (UPSTREAM, ("observe_only=true", "max_rounds=2"), "max_rounds", "observe_only"),
        (
            UPSTREAM,
            ("observe_only=true", "refusals.default.en=No."),
            "refusals.default.en",
            "observe_only",
        ),
        (
            UPSTREAM,
            ("stage=2", "feedback.model=reviewer:words", "feedback.server=http://a/v1"),
            "feedback.server",
            "writes no text",
        ),
        (
            UPSTREAM,
            (*GUARDED, "feedback.max_new_tokens=64"),
            "feedback.max_new_tokens",
            "leave out feedback.guard",
        ),
        (
            UPSTREAM,
            (*REVIEWED, "on_other_language=refuse"),
            "on_other_language",
            "only where the rules decide alone",
        ),
        (UPSTREAM, (*REVIEWED, "feedback.api_key_env=KEY"), "feedback.api_key_env", "no server"),
        (UPSTREAM, ("upstream.max_new_tokens=9",), "upstream.max_new_tokens", "is a server"),
        (FOLDER, ("upstream.api_key_env=KEY",), "upstream.api_key_env", "in this process"),
        (
            UPSTREAM,
            ("memory.url=sqlite:///m.db", "memory.judge_share=0.5"),
            "memory.judge_share",
            "set memory.judge",
        ),
        (
            UPSTREAM,
            ("memory.url=sqlite:///m.db", 'memory.examples_for=["feedback"]'),
            "memory.examples_for",
            "set memory.examples",
        ),
        (
            UPSTREAM,
            ("audit.folder=runs/audit", "audit.contents_days=9"),
            "audit.contents_days",
            "set audit.contents = true",
        ),
        (UPSTREAM, ("prices.m.input=1", "prices.m.output=1"), "prices.m.input", "budget.folder"),
        (UPSTREAM, ('privacy.regions=["FR"]',), "privacy.regions", "nothing is stored"),
    ],
)
def test_a_setting_that_another_one_switches_off_is_told(
    caplog, options, settings, unused, because
):
    ((level, line),) = told(caplog, *settings, options=options)
    assert level == "WARNING"
    assert line.startswith(f"{unused} (--set)")
    assert because in line.partition("because ")[2]


def test_what_has_an_effect_or_is_the_default_is_not_told(caplog):
    recipe = Path(__file__).parents[2] / "recipes/gateway.toml"
    assert told(caplog, path=recipe) == []  # it spells defaults out
    assert told(caplog, "threshold=0.9", "max_rounds=2", "stream=buffer") == []
    used = (*REVIEWED, "on_failure=rules", "stage2_percentage=10", "feedback.max_new_tokens=64")
    assert told(caplog, *used) == []
    classifier = ("stage=2", "feedback.model=reviewer:words", "on_other_language=refuse")
    assert told(caplog, *classifier) == []
    assert told(caplog, "upstream.max_new_tokens=9", options=FOLDER) == []
    assert told(caplog, environ={"WALTZRL_STAGE": "2"}) == []


def test_the_recipe_of_a_release_is_told_too(caplog, tmp_path):
    path = tmp_path / "bundle.toml"
    path.write_text('[upstream]\nurl = "http://localhost:8000/v1"\n[feedback]\nmodel = "guard"\n')
    load_bundle(path, None, ["threshold=0.9"])
    assert caplog.messages == [f"no effect: feedback.model ({path}), {STAGE_1}"]


@pytest.mark.parametrize(
    "settings",
    [
        ('privacy.regions=["FR"]', "policies.a.privacy.upstream=mask"),
        ("feedback.model=guard", "on_failure=rules", "policies.a.stage=2"),
        ("enabled=false", "threshold=0.9", "policies.a.enabled=true"),
    ],
)
def test_what_has_an_effect_in_a_policy_is_not_told(caplog, settings):
    assert told(caplog, *settings) == []
    assert told(caplog, *(one for one in settings if not one.startswith("policies"))) != []
