"""Commands whose judge asks a model behind a server."""

import asyncio
import json
from dataclasses import replace

import pytest

from support.evaluation_rows import prompt, row
from support.guard_judge import GuardJudge
from support.openai_server import serving
from support.small_runs import run, save_model, save_prompts
from waltzrl.budget import LEDGER, ModelPrice, read_ledger
from waltzrl.errors import PolicyError
from waltzrl.evaluation.costs import charge_evaluation, charge_judge
from waltzrl.evaluation.rows import write_rows
from waltzrl.evaluation.settings import EvaluationConfig, EvaluationPrices
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Message, Prompt, Reply

SAFE = "Harmful request: no\nResponse refusal: no\nHarmful response: no"


@pytest.mark.promise(
    "Evaluation", "What a judge could not judge is kept, and only judged by the next run"
)
@pytest.mark.promise(
    "Bad input",
    "A judge's server that is down or too slow: the judge, and how many rows await a verdict; "
    "nothing is generated again",
)
@pytest.mark.slow
def test_a_judge_that_is_down_costs_no_reply_and_is_asked_nothing_twice(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("WALTZRL_JUDGE_CACHE", str(tmp_path / "answers.sqlite"))
    prompts, model = save_prompts(tmp_path / "test.jsonl"), save_model(tmp_path / "model")
    state = {"down": True, "asked": 0}

    def answer(_messages):
        if state["down"]:
            raise PolicyError("out of memory")
        state["asked"] += 1
        return SAFE

    with serving({"guard": ScriptedPolicy(answer)}) as server:
        command = (
            *("evaluate", prompts, "--conversation", model, "--pattern", "base"),
            *("--set", "wording=tiny", "--set", "max_new_tokens=6"),
            *("--judge", f"wildguard:guard@{server.base_url}", "--out", tmp_path / "run"),
        )
        assert run(*command) == 2
        errors = [line for line in capsys.readouterr().err.splitlines() if "error:" in line]
        assert len(errors) == 1
        assert "4 of 4 collaborations failed" in errors[0]
        assert "out of memory" in errors[0]
        waiting = logged(tmp_path / "run")
        state["down"] = False
        assert run(*command) == 0
        asked = state["asked"]
        assert 0 < asked <= 4
        done = logged(tmp_path / "run")
        said = {row["prompt_id"]: row["unjudged"] for row in waiting}
        assert {row["prompt_id"]: row["judged"]["collaboration"] for row in done[4:]} == said
        assert run("rescore", tmp_path / "run", *command[-4:-2], "--json") == 0
    assert state["asked"] == asked
    charges = read_ledger(tmp_path / "run" / LEDGER).charges
    assert [charge.activity for charge in charges] == ["evaluation"] * 4 + ["judging"]
    assert [item.role for item in charges[-1].items] == ["machine", "judge"]
    (answered,) = done[4]["judged"]["verdicts"][0]["answers"]
    assert (answered["text"], answered["revision"]) == (SAFE, "guard")


def test_what_a_judge_answers_is_charged_and_again_replaces_it(tmp_path):
    prices = EvaluationPrices(prices={"guard": ModelPrice(input=1.0, output=11.0)})
    prompt = Prompt(id="1", messages=(Message(role="user", content="hi"),))
    for _ in range(2):
        place = ("guard", "http://127.0.0.1:9/v1")
        with charge_judge(GuardJudge(900, 100), place, "judge/a.jsonl", prices, tmp_path) as judge:
            for _ in range(3):
                asyncio.run(judge.judge(prompt, Reply(text="ho")))
    contents = read_ledger(tmp_path / LEDGER)
    (charge,), (replaced,) = contents.charges, contents.repeated
    assert (charge.activity, charge.tokens) == (replaced.activity, replaced.tokens)
    assert (charge.activity, charge.tokens) == ("judging", 3000)
    assert charge.usd == pytest.approx(3 * (900 * 1 + 100 * 11) / 1e6)


@pytest.mark.parametrize(
    "stop", [KeyboardInterrupt(), PolicyError("1 of 2 collaborations failed")], ids=type
)
def test_an_evaluation_that_is_stopped_or_fails_charges_what_it_did(tmp_path, stop):
    config = EvaluationConfig(patterns=("base",), conversation="talk", feedback="talk")
    done = row(prompt("b1"), "Like this.", pattern="base")
    write_rows(tmp_path, [done, replace(done, pattern="other")])
    for _ in range(2):
        with pytest.raises(type(stop)), charge_evaluation(config, ("", None), tmp_path):
            raise stop
        (charge,) = read_ledger(tmp_path / LEDGER).charges
        assert charge.id == "base/b1/0"


def logged(folder):
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
