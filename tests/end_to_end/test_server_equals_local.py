"""An agent behind a server is measured like the same agent in this process."""

import json

from support.openai_server import serving
from support.small_runs import run, save_model, save_prompts, save_recipe
from support.timing import until
from waltzrl.policies import ScriptedPolicy
from waltzrl.policies.local import Decoding, LocalPolicy
from waltzrl.policies.weights import load_causal_lm
from waltzrl.records import Reply

SETTINGS = ("--set", "wording=tiny", "--set", "max_new_tokens=6", "--json")
CHECKS = 2
"""Questions that a run asks its judge before it begins: one about each label."""


def table(capsys, *arguments):
    assert run("evaluate", *arguments, *SETTINGS) == 0
    return json.loads(capsys.readouterr().out)


def replies(folder):
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    said = [(one["pattern"], one["prompt_id"], one["judged"]["collaboration"]) for one in lines]
    return {(pattern, prompt): c["draft"]["text"] for pattern, prompt, c in said}


def test_a_server_gives_the_same_numbers_as_this_process(tmp_path, capsys):
    prompts = save_prompts(tmp_path / "test.jsonl")
    talking, reviewing = (
        save_model(tmp_path / name, seed=seed) for seed, name in enumerate(("talk", "review"))
    )
    here = table(
        *(capsys, prompts, "--out", tmp_path / "here"),
        *("--conversation", talking, "--feedback", reviewing),
    )
    policies = {
        folder.name: LocalPolicy(*(lm.model, lm.tokenizer), decoding=Decoding(in_thread=True))
        for folder in (talking, reviewing)
        for lm in [load_causal_lm(str(folder), "cpu")]
    }
    with serving(policies) as server:
        there = table(
            *(capsys, prompts, "--out", tmp_path / "there", "--server", server.base_url),
            *("--model", "talk", "--feedback", "review"),
        )
        assert len(server.requests) >= 4 * 4
    assert here == there
    assert [line["pattern"] for line in here] == ["base", "collaborate", "safeguard", "oracle"]
    assert here[0]["asr"]["n"] == here[0]["orr"]["n"] == 2
    assert replies(tmp_path / "here") == replies(tmp_path / "there")


def test_what_was_evaluated_is_not_asked_again(tmp_path, capsys):
    prompts, model = save_prompts(tmp_path / "test.jsonl"), save_model(tmp_path / "model")
    lm = load_causal_lm(str(model), "cpu")
    policy = LocalPolicy(lm.model, lm.tokenizer, decoding=Decoding(in_thread=True))
    with serving({"m": policy}) as server:
        arguments = (
            *(capsys, prompts, "--out", tmp_path / "out", "--server", server.base_url),
            *("--model", "m", "--pattern", "base"),
        )
        first = table(*arguments)
        asked = len(server.requests)
        assert table(*arguments) == first
        assert len(server.requests) == asked == 4


def test_a_judge_behind_a_server_labels_and_rescores(tmp_path, capsys):
    prompts, out = save_prompts(tmp_path / "test.jsonl"), tmp_path / "out"
    no, yes = (ScriptedPolicy(lambda _messages, said=said: said) for said in ("no", "yes"))
    with serving({"m": ScriptedPolicy(lambda _messages: "Sure."), "no": no, "yes": yes}) as server:
        judges = {name: f"llm:{name}@{server.base_url}" for name in ("no", "yes")}
        arguments = ("--model", "m", "--pattern", "base", "--server", server.base_url)
        base = (prompts, "--out", out, *arguments)
        first = table(capsys, *base, "--judge", judges["no"])
        assert run("evaluate", *base, *SETTINGS, "--judge", judges["yes"]) == 2
        assert "judged by llm:no@" in capsys.readouterr().err
        assert run("rescore", out, "--judge", judges["yes"], "--json") == 0
        shown = capsys.readouterr()
        assert run("judge", save_replies(tmp_path), "--judge", judges["yes"]) == 0
        labelled = capsys.readouterr()
    assert [first[0]["asr"]["value"], json.loads(shown.out)[0]["asr"]["value"]] == [0.0, 1.0]
    assert json.loads(labelled.out)["refuses"] is True
    assert shown.err == labelled.err == ""  # no connection is left open


def save_replies(folder):
    path = folder / "replies.jsonl"
    path.write_text('{"prompt": "How?", "response": "So."}\n')
    return path


class AnsweringTogether:
    """A judge's model that answers nobody, after the check, before so many ask at once."""

    def __init__(self, count):
        self._count, self._asked = count, 0

    async def reply(self, messages, sampling):
        self._asked += 1
        checked = self._asked <= CHECKS
        await until(lambda: checked or self._asked >= CHECKS + self._count)
        return Reply(text="no")


def test_a_run_asks_its_judge_about_all_collaborations_of_a_step_at_once(tmp_path):
    out = tmp_path / "run"
    settings = ("--set=stages.feedback.steps=1", "--set=stages.joint.steps=0")
    with serving({"m": AnsweringTogether(3)}) as server:
        judge = f"--set=judge=llm:m@{server.base_url}"
        assert run("train", save_recipe(tmp_path), "--out", out, *settings, judge) == 0
    assert server.most_at_once >= 3  # of 3 prompts a step
    verdicts = (out / "judge-answers.jsonl").read_text().splitlines()
    assert len(verdicts) >= 3
