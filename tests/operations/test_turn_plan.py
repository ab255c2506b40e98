"""A turn of the flywheel as commands: what it trains on, compares and proposes."""

import json
import tomllib
from pathlib import Path

import pytest

from waltzrl.agents.exports import LIMITS
from waltzrl.agents.settings import FeedbackConfig
from waltzrl.errors import InputError, RecipeError
from waltzrl.gateway.settings import BundleRecipe
from waltzrl.operations.flywheel import TurnSettings, load_turn_settings, plan_turn, render_step
from waltzrl.policies.settings import UpstreamConfig

RECIPE = Path(__file__).parents[2] / "recipes" / "quarterly.toml"
URL = "sqlite:///m.db"
SERVER = UpstreamConfig(url="http://localhost:8000/v1")


@pytest.fixture
def pair(tmp_path):
    """What of an export a plan reads: its limits."""
    folder = tmp_path / "agents"
    folder.mkdir()
    limits = {"conversation": 64, "feedback": 32}
    (folder / "manifest.json").write_text(json.dumps({LIMITS: limits}))
    return folder


def settings(**more):
    return TurnSettings(memory=URL, train=Path("continue.toml"), sets=("generator:test",), **more)


def serving(pair, upstream=None):
    upstream = upstream or UpstreamConfig(folder=f"{pair}/waltzrl_conversation_stage2")
    reviewer = FeedbackConfig(model=f"{pair}/waltzrl_feedback_stage2", wording="tiny")
    return BundleRecipe(stage=2, upstream=upstream, feedback=reviewer)


def commands(*plan):
    return [render_step(step) for step in plan_turn(*plan).steps]


def evaluation(name, conversation, feedback):
    return (
        f"waltzrl evaluate generator:test --conversation {conversation} --feedback {feedback} "
        f"--pattern guarded --set wording=plain --set max_new_tokens=64 --judge refusal "
        f"--out {name}"
    )


@pytest.mark.promise("Requirements", "quarterly retraining with updated dataset")
@pytest.mark.promise(
    "Evidence of a release", "`waltzrl flywheel` trains, evaluates and proposes by our commands"
)
def test_a_turn_trains_the_pair_that_serves_and_compares_both(pair):
    old = f"{pair}/waltzrl_conversation_stage2", f"{pair}/waltzrl_feedback_stage2"
    new = "t/agents/waltzrl_conversation_stage2", "t/agents/waltzrl_feedback_stage2"
    assert commands(settings(), Path("t"), serving(pair)) == [
        f"waltzrl train continue.toml --from {URL} --set models.pair={pair} --out t/run "
        "--export t/agents",
        evaluation("t/serving", *old),
        evaluation("t/candidate", *new),
        "waltzrl release propose t/candidate.toml --before t/serving --after t/candidate "
        f"--plan seven_days --memory {URL}",
    ]


def test_with_a_model_on_a_server_only_the_reviewer_changes(pair):
    drafts = f"{pair}/waltzrl_conversation_stage2"
    _, before, after, _ = commands(settings(), Path("t"), serving(pair, SERVER))
    assert before == evaluation("t/serving", drafts, f"{pair}/waltzrl_feedback_stage2")
    assert after == evaluation("t/candidate", drafts, "t/agents/waltzrl_feedback_stage2")


def test_rules_that_serve_are_compared_with_a_pair_that_is_named(pair):
    rules = BundleRecipe(upstream=SERVER)
    with pytest.raises(InputError, match="no exported pair serves"):
        plan_turn(settings(), Path("t"), rules)
    drafts = f"{pair}/waltzrl_conversation_stage2"
    _, before, *_ = commands(settings(pair=pair), Path("t"), rules)
    assert before == evaluation("t/serving", drafts, "rules")


def test_a_reviewer_on_a_server_ends_a_turn_before_the_proposal(pair):
    reviewer = FeedbackConfig(model="pair", server="http://reviewer:8000/v1")
    bundle = BundleRecipe(stage=2, upstream=SERVER, feedback=reviewer)
    with pytest.raises(InputError, match="--set propose=false"):
        plan_turn(settings(pair=pair), Path("t"), bundle)
    trained = commands(settings(pair=pair, propose=False), Path("t"), None)
    assert [command.split()[1] for command in trained] == ["train", "evaluate"]


def test_a_pair_must_be_an_export(tmp_path):
    with pytest.raises(InputError, match="is no export of a pair"):
        plan_turn(settings(pair=tmp_path), Path("t"), None)


def test_the_quarterly_recipe_names_a_recipe_that_is_there_and_refuses_unknown_keys():
    recipe = load_turn_settings(RECIPE, ["memory=sqlite:///other.db"])
    assert (RECIPE.parents[1] / recipe.train).is_file()
    assert (recipe.memory, recipe.propose) == ("sqlite:///other.db", True)
    with pytest.raises(RecipeError, match="did you mean 'sets'"):
        load_turn_settings(RECIPE, ["set=x"])


def test_cron_runs_the_command_of_the_recipe_on_the_first_day_of_each_quarter():
    (line,) = [line[2:].strip() for line in RECIPE.read_text().splitlines() if "0 3 1" in line]
    minute, hour, day, months, weekday, command = line.split(maxsplit=5)
    assert (minute, hour, day, months, weekday) == ("0", "3", "1", "1,4,7,10", "*")
    assert "waltzrl flywheel recipes/quarterly.toml --run" in command
    assert tomllib.loads(RECIPE.read_text())["fewest_prompts"] == 500
