"""A turn of the flywheel as commands: what it trains on, compares and proposes."""

import json
import signal
import sys
import threading
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from support.timing import wait_until
from waltzrl.__main__ import main
from waltzrl.agents.exports import LIMITS
from waltzrl.agents.rules import DEFAULT_PACKS, load_rulebook
from waltzrl.agents.settings import FeedbackConfig
from waltzrl.errors import InputError, RecipeError
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.bundles import describe_bundle
from waltzrl.gateway.pairs import pair_settings
from waltzrl.gateway.settings import BundleRecipe
from waltzrl.operations.flywheel import (
    TurnSettings,
    load_turn_settings,
    plan_turn,
    render_step,
    run_command,
    run_turn,
)
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.plan import load_plan
from waltzrl.policies.settings import UpstreamConfig
from waltzrl.store.database import open_database

RECIPE = Path(__file__).parents[2] / "recipes" / "quarterly.toml"
URL = "sqlite:///m.db"
SERVER = UpstreamConfig(url="http://localhost:8000/v1")
ENDS_LATE = """
import pathlib, signal, sys, time
def end(number, frame):
    time.sleep(0.5)
    pathlib.Path(sys.argv[1], "ended").write_text(str(number))
    sys.exit()
signal.signal(int(sys.argv[2]), end)
pathlib.Path(sys.argv[1], "ready").touch()
time.sleep(60)
"""


@pytest.fixture
def pair(tmp_path):
    return save_export(tmp_path / "agents")


@pytest.fixture
def book(sqlite_url):
    engine = open_database(sqlite_url)
    yield ReleaseBook(engine)
    engine.dispose()


def save_export(folder):
    """Write what of an export a plan reads: its limits."""
    folder.mkdir(parents=True)
    limits = {"conversation": 64, "feedback": 32}
    (folder / "manifest.json").write_text(json.dumps({LIMITS: limits}))
    return folder


def propose(book, candidate, serving):
    ids = []
    for recipe in (candidate, serving):
        id_, description = describe_bundle(recipe, load_rulebook())
        book.add_bundle(id_, "{}", description)
        ids.append(id_)
    return book.propose(*ids, load_plan("quick"), "ada", "to try it")


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


@pytest.mark.parametrize(
    ("stage", "changed", "named"),
    [
        (1, {"rules": DEFAULT_PACKS[:1]}, "its own rules"),
        (1, {"upstream": UpstreamConfig(program="answer.py")}, "upstream.program"),
        (1, {"upstream": UpstreamConfig(folder="talk", reviser="mend")}, "upstream.reviser"),
        (1, {"enabled": False}, "enabled = false"),
        (2, {"feedback": FeedbackConfig(model="reviewer:base")}, "the classifier reviewer:base"),
        (
            1,
            {"feedback": FeedbackConfig(model="reviewer:base", false_alarms=0.1)},
            "feedback.false_alarms",
        ),
        (
            2,
            {"feedback": FeedbackConfig(model="talk", calibration="c.json")},
            "feedback.calibration",
        ),
    ],
)
def test_what_only_the_proposal_would_refuse_ends_a_turn_before_it_trains(
    pair, stage, changed, named
):
    bundle = BundleRecipe(**{"stage": stage, "upstream": SERVER} | changed)
    refused = f"successor: {named}; use --set propose=false to train without proposing"
    with pytest.raises(InputError, match=refused):
        plan_turn(settings(pair=pair), Path("t"), bundle)


def test_in_stage_2_the_gate_does_not_ask_for_the_rules(pair):
    bundle = replace(serving(pair), rules=DEFAULT_PACKS[:1])
    assert len(commands(settings(), Path("t"), bundle)) == 4


def test_an_unknown_plan_ends_a_turn_before_it_trains(pair):
    with pytest.raises(InputError, match="seven_weeks"):
        plan_turn(settings(plan="seven_weeks"), Path("t"), serving(pair))


def test_a_pair_whose_release_was_rolled_back_is_not_proposed_again(pair, tmp_path, book):
    turn = plan_turn(settings(), tmp_path / "t", serving(pair))
    trained = pair_settings(save_export(turn.agents), with_upstream=True)
    candidate = validate_table(BundleRecipe, trained, "candidate")
    release = propose(book, candidate, serving(pair))
    book.move(release, "roll_back", "ada", "complaints")
    proposal, said = replace(turn, steps=turn.steps[-1:]), []
    with pytest.raises(InputError, match=f"release {release.id} of this pair was rolled back"):
        run_turn(proposal, said.append, book)
    assert not said


@pytest.mark.parametrize("proposes", ["true", "false"])
def test_no_turn_starts_during_a_release(pair, book, sqlite_url, proposes, capsys):
    release = propose(book, serving(pair), serving(pair, SERVER))
    changes = (f"memory={sqlite_url}", f"pair={pair}", f"propose={proposes}")
    options = [word for change in changes for word in ("--set", change)]
    with pytest.raises(SystemExit) as stopped:
        main(["flywheel", str(RECIPE), *options])
    assert stopped.value.code == 2
    assert f"release {release.id} is under way" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_goes_to_the_step_and_waits_for_its_end(tmp_path, number):
    def stop():
        wait_until((tmp_path / "ready").exists)
        signal.pthread_kill(threading.main_thread().ident, number)

    # Who runs the tests may ignore it, as nohup does SIGHUP.
    before = signal.signal(number, signal.default_int_handler)
    stopper = threading.Thread(target=stop, daemon=True)
    stopper.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            run_command((sys.executable, "-c", ENDS_LATE, str(tmp_path), str(int(number))))
        assert (tmp_path / "ended").read_text() == str(int(number))
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        signal.signal(number, before)
    stopper.join()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://user:s3cret@host/name",
        "postgresql://user:s3/cret@host/name",
        "postgresql://user@host/name?password=s3cret",
    ],
)
def test_the_url_of_the_memory_has_no_password(url):
    with pytest.raises(RecipeError, match=r"PGPASSWORD or ~/\.pgpass") as refused:
        load_turn_settings(RECIPE, [f"memory={url}"])
    assert "cret" not in str(refused.value)


@pytest.mark.parametrize("url", ["postgresql://user@host/name?sslmode=require", "runs/memory.db"])
def test_a_url_without_a_password_is_read(url):
    assert load_turn_settings(RECIPE, [f"memory={url}"]).memory == url


def test_what_is_no_url_is_not_shown():
    with pytest.raises(RecipeError, match="not a database URL") as refused:
        load_turn_settings(RECIPE, ["memory=://user:s3cret@host"])
    assert "s3cret" not in str(refused.value)


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
