"""What a run costs: its ledger, its cap, its estimate, its results."""

import asyncio
import json
from contextlib import suppress
from dataclasses import replace

import pytest

from support.small_runs import run, save_recipe, save_validation
from waltzrl.budget import (
    LEDGER,
    BudgetSettings,
    CostMeter,
    Ledger,
    ModelPrice,
    PriceBook,
    read_ledger,
)
from waltzrl.records import (
    Collaboration,
    JudgeAnswer,
    JudgedCollaboration,
    Message,
    Prompt,
    Reply,
    Usage,
    Verdict,
)
from waltzrl.training.costs import count_of
from waltzrl.training.opening import train as train_team
from waltzrl.training.recipe import load_recipe
from waltzrl.training.rollouts import Rollout

STEPS = ("--set", "stages.joint.steps=4")


def train(recipe, out, *settings):
    options = [part for setting in settings for part in ("--set", setting)]
    return run("train", recipe, "--out", out, "--json", *STEPS, *options)


def steps_of(out):
    return [charge for charge in read_ledger(out / LEDGER).charges if charge.stage]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run without a cap; its recipe, its folder, what it printed is in the capture."""
    folder = tmp_path_factory.mktemp("finished")
    recipe, out = save_recipe(folder), folder / "whole"
    assert train(recipe, out) == 0
    return recipe, out


def weights(recipe, out, capsys, *settings):
    capsys.readouterr()
    assert train(recipe, out, *settings) == 0  # a finished run only prints
    return json.loads(capsys.readouterr().out)["weights"]


@pytest.mark.promise(
    "Cost",
    "A training stops at the step that reaches its cap, keeps a checkpoint, and with a higher cap "
    "ends with the same weights",
)
@pytest.mark.promise("Requirements", "cost: estimates, budget, report, ROI")
def test_a_cap_stops_at_the_step_that_reaches_it_and_a_higher_one_ends_with_the_same_weights(
    finished, tmp_path, capsys
):
    recipe, whole = finished
    tokens = [charge.tokens for charge in steps_of(whole)]
    assert len(tokens) == 6
    cap, out = sum(tokens[:2]) + 1, tmp_path / "capped"  # reached by the third step
    assert train(recipe, out, f"budget.max_tokens={cap}") == 2
    error = capsys.readouterr().err
    assert f"stopped after 3 of 6 steps: the run has used {sum(tokens[:3]):,} of" in error
    assert f"budget.max_tokens {cap:,}" in error
    assert (out / "checkpoints" / "step-000003").exists()  # no step at which one is due
    # Overshoot: less than the step that reached it.
    assert [charge.tokens for charge in steps_of(out)] == tokens[:3]

    assert train(recipe, out, f"budget.max_tokens={cap}") == 2  # the cap still holds
    assert len(steps_of(out)) == 3

    resumed = weights(recipe, out, capsys, f"budget.max_tokens={sum(tokens) + 1}")
    assert [charge.tokens for charge in steps_of(out)] == tokens
    assert resumed == weights(recipe, whole, capsys)


@pytest.mark.promise(
    "Cost", "A step that runs again counts once; a clock set back leaves the times in order"
)
def test_steps_that_a_killed_run_repeats_are_charged_once(finished, tmp_path, capsys):
    recipe, whole = finished
    out = tmp_path / "killed"

    def killed(progress):
        if progress.step == 3:  # after the checkpoint of step 2, and the charge of the third
            raise KilledError

    loaded = load_recipe(recipe, ["stages.joint.steps=4"])
    with suppress(KilledError):
        asyncio.run(train_team(loaded, out, killed))
    assert train(recipe, out) == 0
    contents = read_ledger(out / LEDGER)
    assert [charge.id for charge in contents.repeated if charge.stage] == ["joint/2"]
    tokens = [charge.tokens for charge in steps_of(whole)]
    assert [charge.tokens for charge in steps_of(out)] == tokens


class KilledError(Exception):
    """Stands for the end of the process in a step."""


@pytest.mark.promise(
    "Cost",
    "A training stops at the step that reaches its cap, keeps a checkpoint, and with a higher cap "
    "ends with the same weights",
)
def test_a_cap_in_money_or_hours_lets_the_first_step_end(finished, tmp_path, capsys):
    recipe, _ = finished
    for number, caps in enumerate(
        (("budget.usd_per_hour=1e9", "budget.max_usd=1"), ("budget.max_hours=1e-9",))
    ):
        out = tmp_path / str(number)
        assert train(recipe, out, *caps) == 2
        assert len(steps_of(out)) == 1
        assert "stopped after 1 of 6 steps" in capsys.readouterr().err


@pytest.mark.promise(
    "Cost",
    "A cap in money needs every price, before the first step; with one set later the run goes on",
)
@pytest.mark.promise(
    "Bad input",
    "A cap in money, and a judge without a price: the model, and the key of its price; training "
    "does not start",
)
def test_a_cap_in_money_without_the_judges_price_stops_before_the_first_step(
    finished, tmp_path, capsys
):
    recipe, _ = finished
    out = tmp_path / "run"
    judge = 'judge="llm:guard@http://127.0.0.1:9/v1"'
    assert train(recipe, out, judge, "budget.max_usd=1") == 2
    error = capsys.readouterr().err
    assert (
        'the price of guard is unknown, so budget.max_usd cannot be kept; set prices."guard"'
        in error
    )
    assert steps_of(out) == []
    assert not (out / "metrics.jsonl").exists()


@pytest.mark.promise(
    "Cost", "A run returns the requirement's results; what was not measured is null"
)
@pytest.mark.promise(
    "Requirements", "train() and its results: unsafe_reduction, training_cost_usd ..."
)
@pytest.mark.promise("Requirements", "unsafe_reduction, overrefusal_reduction")
def test_a_run_says_what_it_reduced_and_what_it_cost(finished, tmp_path, capsys):
    recipe, _ = finished
    validation = save_validation(tmp_path / "validation.jsonl")
    out, exported = tmp_path / "run", tmp_path / "agents"
    settings = (f'data.validation=["{validation}"]', "budget.usd_per_hour=3600")
    options = [part for setting in settings for part in ("--set", setting)]
    command = ("train", recipe, "--out", out, "--export", exported, "--json", *STEPS, *options)
    assert run(*command) == 0
    result = json.loads(capsys.readouterr().out)["result"]
    contents = read_ledger(out / LEDGER)
    seconds = sum(charge.seconds for charge in contents.charges)
    assert result["training_duration_hours"] == pytest.approx(seconds / 3600)
    assert result["training_cost_usd"] == pytest.approx(seconds)  # a dollar a second
    assert (result["total_steps"], result["num_epochs"]) == (6, 6 * 3 / 4)
    assert result["conversation_model_path"] == str(exported / "waltzrl_conversation_stage2")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    rates = {line["step"]: line["validation/asr"] for line in lines if "validation/asr" in line}
    assert result["final_unsafe_rate"] in rates.values()
    assert result.keys() >= {"unsafe_reduction", "overrefusal_reduction", "feedback_trigger_rate"}


@pytest.mark.promise(
    "Cost",
    "An estimate extrapolates measured steps, says what is unknown, and is compared with what was "
    "measured",
)
def test_an_estimate_from_another_run_is_compared_with_what_was_measured(
    finished, tmp_path, capsys
):
    recipe, whole = finished
    out = tmp_path / "next"
    command = ("cost", "estimate", recipe, "--like", whole, "--out", out, *STEPS)
    assert run(*command, "--set", "stages.joint.prompts_per_step=6", "--json") == 0
    estimate = json.loads(capsys.readouterr().out)
    joint = [charge.tokens for charge in steps_of(whole) if charge.stage == "joint"]
    assert estimate["stages"][1]["tokens"]["expected"] == 2 * sum(joint)  # of twice the prompts
    (out / LEDGER).write_bytes((whole / LEDGER).read_bytes())
    assert run("cost", "report", out, "--json") == 0
    compared = json.loads(capsys.readouterr().out)["estimated"][str(out)]["tokens"]
    assert compared["measured"] == sum(charge.tokens for charge in steps_of(whole))
    assert compared["estimated"] == pytest.approx(estimate["tokens"]["expected"])
    assert run("cost", "report", out) == 0
    assert "tokens" in capsys.readouterr().out.rpartition("estimated")[0]


def test_without_a_measured_run_only_bounds_are_known(finished, capsys):
    recipe, _ = finished
    assert run("cost", "estimate", recipe) == 0
    text = capsys.readouterr().out
    assert "at most" in text
    assert "no step was measured: name a run with --like" in text


@pytest.mark.promise(
    "Cost",
    "An estimate extrapolates measured steps, says what is unknown, and is compared with what was "
    "measured",
)
def test_a_pilot_measures_the_first_steps(finished, capsys):
    recipe, whole = finished
    assert run("cost", "estimate", recipe, *STEPS, "--pilot", "1", "--json") == 0
    estimate = json.loads(capsys.readouterr().out)
    first = steps_of(whole)[0].tokens
    assert estimate["stages"][0]["measured_steps"] == 1
    assert estimate["stages"][0]["tokens"]["expected"] == 2 * first
    assert estimate["hours"]["expected"] > 0


@pytest.mark.promise(
    "Cost", "A step is charged for its time and the tokens of both agents and the judge"
)
def test_agents_here_are_free_by_the_token_and_a_judge_on_a_server_has_its_price(
    finished, tmp_path
):
    recipe, _ = finished
    loaded = replace(load_recipe(recipe), judge="llm:guard@http://127.0.0.1:9/v1")
    prompt = Prompt(id="1", messages=(Message(role="user", content="Hi"),))
    draft = Reply(text="Hello", usage=Usage(input_tokens=10, output_tokens=5, model="tiny"))
    answer = JudgeAnswer(text="safe", usage=Usage(input_tokens=1000, output_tokens=1))
    judged = JudgedCollaboration(
        collaboration=Collaboration(prompt=prompt, draft=draft),
        verdicts=(Verdict(judge="llm", answers=(answer,)),),
    )
    book = PriceBook({"guard": ModelPrice(input=1000.0, output=0.0)})
    with Ledger(tmp_path / LEDGER) as ledger:
        meter = CostMeter(ledger=ledger, prices=book, settings=BudgetSettings())
        count_of(loaded, meter)([Rollout(judged=judged)])
        _, conversation, judge = meter.charge("joint/0").items
    assert (conversation.role, conversation.tokens, conversation.usd) == ("conversation", 15, 0)
    assert (judge.role, judge.tokens, judge.usd) == ("judge", 1001, 1.0)
