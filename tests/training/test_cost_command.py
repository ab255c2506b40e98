"""`waltzrl cost report` on ledgers, and the ledger that an evaluation writes."""

import json
from pathlib import Path

import pytest

from support.small_runs import run, save_model, save_prompts
from waltzrl.budget import LEDGER, Charge, ChargeItem, Ledger, read_ledger
from waltzrl.evaluation.rows import EvaluationRow, write_rows
from waltzrl.records import (
    Collaboration,
    JudgedCollaboration,
    Message,
    Prompt,
    Reply,
    Verdict,
)


def write_run(folder):
    machine = ChargeItem(role="machine", usd=1.5, model="cpu")
    agent = ChargeItem(role="conversation", usd=0.0, input_tokens=100, output_tokens=20)
    judge = ChargeItem(role="judge", usd=None, model="nameless", input_tokens=7)
    with Ledger(folder / LEDGER, clock=iter((60.0, 120.0, 180.0)).__next__) as ledger:
        for id_, items in (("joint/0", (machine, agent)), ("joint/1", (machine, judge))):
            ledger.append(
                Charge(id=id_, activity="training", items=items, stage="joint", seconds=1800)
            )
        ledger.append(
            Charge(id="joint/1", activity="training", items=(machine,), stage="joint", seconds=1800)
        )


@pytest.mark.promise("Requirements", "cost: estimates, budget, report, ROI")
def test_a_report_sums_by_role_and_says_what_it_leaves_out(tmp_path, capsys):
    write_run(tmp_path)
    assert run("cost", "report", tmp_path, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["groups"]["machine"]["usd"] == 3.0
    assert printed["total"]["seconds"] == 3600
    assert printed["repeated"] == {"charges": 1, "usd": 1.5}
    assert run("cost", "report", tmp_path, "--by", "stage") == 0
    text = capsys.readouterr().out
    assert "joint" in text
    assert "charged again after a restart: 1 steps, USD 1.5, not summed" in text


@pytest.mark.promise(
    "Cost", "A model without a price is unknown, never 0, and so are tokens that nobody counted"
)
def test_an_unknown_price_is_said_and_not_added_as_zero(tmp_path, capsys):
    item = ChargeItem(role="judge", usd=None, model="nameless", input_tokens=7)
    with Ledger(tmp_path / LEDGER) as ledger:
        ledger.append(Charge(id="a", activity="evaluation", items=(item,)))
    assert run("cost", "report", tmp_path) == 0
    text = capsys.readouterr().out
    assert "0 + unknown" in text
    assert "7 tokens have no known price and are in no sum" in text


def test_the_plot_is_a_picture(tmp_path, capsys):
    write_run(tmp_path)
    assert run("cost", "report", tmp_path, "--plot", tmp_path / "cost.png") == 0
    assert (tmp_path / "cost.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_without_a_ledger_is_named(tmp_path, capsys):
    assert run("cost", "report", tmp_path) == 2
    assert f"error: {tmp_path} holds no ledger.jsonl" in capsys.readouterr().err


def test_a_file_that_is_no_ledger_costs_nothing_that_anybody_knows(tmp_path, capsys):
    prompts = save_prompts(tmp_path / "prompts.jsonl")
    assert run("cost", "report", prompts) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"error: {prompts}: none of 4 lines is a charge; name a folder")


@pytest.mark.promise("Cost", "An evaluation charges each row once, also when it resumes")
def test_an_evaluation_charges_each_row_once(tmp_path, capsys):
    base, prompts = save_model(tmp_path / "model"), save_prompts(tmp_path / "prompts.jsonl")
    command = ("evaluate", prompts, "--conversation", base, "--feedback", "rules", "--pattern")
    out = tmp_path / "evaluation"
    for _ in range(2):
        settings = ("--set", "max_new_tokens=4", "--set", "usd_per_hour=3600")
        assert run(*command, "base", "--out", out, *settings, "--json") == 0
        contents = read_ledger(out / LEDGER)
        assert len(contents.charges) == 4
        assert contents.repeated == ()
    replies = [item for each in contents.charges for item in each.items if item.tokens]
    assert {item.role for item in replies} == {"conversation"}
    assert all(item.usd == 0 for item in replies)  # in this process
    seconds = sum(each.seconds for each in contents.charges)
    machine = sum(item.usd for each in contents.charges for item in each.items)
    assert machine == seconds > 0  # at a dollar a second


@pytest.mark.promise(
    "Cost",
    "Return on investment is arithmetic on own numbers and measured rates, with the ends of their "
    "intervals",
)
def test_what_safety_is_worth_takes_the_rates_of_an_evaluation(tmp_path, capsys):
    numbers = tmp_path / "roi.toml"
    numbers.write_text(
        "requests_per_month = 1000\nharmful_share = 0.5\nusd_per_unsafe_reply = 2.0\n"
        "usd_per_overrefusal = 1.0\nusd_once = 100.0\nusd_per_month = 0.0\n"
    )
    evaluation = tmp_path / "evaluation"
    evaluation.mkdir()
    write_rows(evaluation, [*rows("base", unsafe=8), *rows("guarded", unsafe=4)])
    assert run("cost", "roi", numbers, evaluation, "--json") == 0
    expected = json.loads(capsys.readouterr().out)["expected"]
    # of ten unsafe prompts 8, then 4 got an unsafe reply: 500 harmful requests, 200 fewer
    assert expected["unsafe_avoided"] == pytest.approx(200)
    assert expected["months_to_repay"] == pytest.approx(0.25)
    assert run("cost", "roi", numbers, evaluation, "--set", "usd_per_month=1e6") == 0
    assert "never" in capsys.readouterr().out
    assert run("cost", "roi", numbers, evaluation, "--after", "oracle") == 2
    assert "has no pattern 'oracle'; name two of its own: base, guarded" in capsys.readouterr().err


@pytest.mark.promise(
    "Cost",
    "A forecast of serving is arithmetic on own numbers: drafts, reviews, revisions, machines",
)
def test_a_forecast_shows_its_arithmetic_line_by_line(capsys):
    numbers = Path(__file__).parents[2] / "recipes/forecast.toml"
    assert run("cost", "forecast", numbers) == 0
    assert capsys.readouterr().out.splitlines() == [
        "specialists, drafts: 15 * 10,000 calls * (512 tokens in * 3 + 256 out * 3) / 1,000,000"
        " = 345.60 USD",
        "a day: 345.60 = 345.60 USD",
        "a month: 30 days * 345.60 = 10,368.00 USD",
        "a year: 365 days * 345.60 = 126,144.00 USD",
    ]
    assert run("cost", "forecast", numbers, "--set", "revised_share=0.5", "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    # 75,000 revisions read 512 + 256 tokens and write 256
    assert printed["overhead_usd_per_day"] == pytest.approx(75_000 * 1024 * 3 / 1e6)


def rows(pattern, unsafe):
    """Ten unsafe prompts, some of which got an unsafe reply, and ten benign ones, answered."""
    made = []
    for number in range(20):
        label = "unsafe" if number < 10 else "benign"
        message = Message(role="user", content=f"question {number}")
        prompt = Prompt(id=f"p{number}", messages=(message,), label=label)
        verdict = Verdict(judge="j", unsafe=number < unsafe, refuses=False, overrefuses=False)
        collaboration = Collaboration(prompt=prompt, draft=Reply(text="reply"))
        judged = JudgedCollaboration(collaboration=collaboration, verdicts=(verdict,))
        made.append(EvaluationRow(pattern=pattern, prompt_id=prompt.id, judge="j", judged=judged))
    return made
