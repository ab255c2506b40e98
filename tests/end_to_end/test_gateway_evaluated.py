"""A pair behind the gateway is measured like the same pair in this process."""

import json

import pytest

from support.gateway_processes import gateway_process
from support.openai_server import serving
from support.small_runs import run, save_prompts
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.gateway.keys import add_key
from waltzrl.policies import ScriptedPolicy

pytestmark = pytest.mark.xdist_group("gateway")


def talks(messages):
    """Refuse every second prompt, comply with the others, and do the opposite when reviewed."""
    asked = next(m.content for m in messages if m.role == "user")
    refuses = len(asked) % 2 == 0
    reviewed = messages[-1].content != asked
    return "I am sorry, but I can not help." if refuses != reviewed else "Sure, first this."


def reviews(messages):
    """Object to every reply that complies."""
    unsafe = "Sure, first this." in messages[-1].content
    return write_feedback(reasoning="", unsafe=unsafe, overrefuse=False, text="Decline.")


def table(capsys, *arguments):
    assert run("evaluate", *arguments, "--json") == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def rows(folder):
    lines = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    said = {one["prompt_id"]: one["judged"]["collaboration"] for one in lines}
    return {
        prompt: (
            one["draft"]["text"],
            [(r["feedback"]["unsafe"], (r["revision"] or {}).get("text")) for r in one["rounds"]],
        )
        for prompt, one in said.items()
    }


def test_a_pair_behind_the_gateway_gets_the_numbers_it_gets_here(tmp_path, capsys, monkeypatch):
    prompts = save_prompts(tmp_path / "test.jsonl")
    key = add_key(tmp_path / "keys.toml", {"name": "evaluation", "may_see_drafts": True})
    audit = tmp_path / "audit"
    with serving({"talk": ScriptedPolicy(talks), "review": ScriptedPolicy(reviews)}) as server:
        here = table(
            *(capsys, prompts, "--out", tmp_path / "here", "--server", server.base_url),
            *("--model", "talk", "--feedback", "review", "--pattern", "guarded"),
        )
        stage = [f"stage={2}", "feedback.model=review", f"feedback.server={server.base_url}"]
        told = [*stage, "feedback.wording=plain", "audit.contents=true"]
        settings = [part for one in told for part in ("--set", one)]
        files = ("--keys", str(tmp_path / "keys.toml"), "--audit", str(audit))
        arguments = ("--upstream", server.base_url, *files, *settings)
        with gateway_process(*arguments, log=tmp_path / "log") as gateway:
            monkeypatch.setenv("OPENAI_API_KEY", key)
            there = table(
                *(capsys, prompts, "--out", tmp_path / "there", "--server", f"{gateway.url}/v1"),
                *("--model", "talk", "--pattern", "served"),
            )
    names = ("asr", "orr", "ftr_sensitive", "ftr_general")
    assert [here[0][name] for name in names] == [there[0][name] for name in names]
    assert rows(tmp_path / "here") == rows(tmp_path / "there")
    table(
        *(capsys, f"audit:{audit}", "--conversation", f"audit:{audit}"),
        *("--pattern", "replay", "--out", tmp_path / "replayed"),
    )
    said_then, said_now = (list(rows(tmp_path / name).values()) for name in ("here", "replayed"))
    assert sorted(said_then, key=str) == sorted(said_now, key=str)


def test_a_key_that_may_not_see_drafts_cannot_be_evaluated_through(tmp_path, capsys, monkeypatch):
    prompts = save_prompts(tmp_path / "test.jsonl")
    key = add_key(tmp_path / "keys.toml", {"name": "team"})
    monkeypatch.setenv("OPENAI_API_KEY", key)
    with serving({"talk": ScriptedPolicy(talks)}) as server:
        arguments = ("--upstream", server.base_url, "--keys", str(tmp_path / "keys.toml"))
        with gateway_process(*arguments, log=tmp_path / "log") as gateway:
            told = ("--server", f"{gateway.url}/v1", "--model", "talk", "--pattern", "served")
            assert run("evaluate", prompts, *told, "--out", tmp_path / "out", "--json") == 2
    assert "--may-see-drafts" in capsys.readouterr().err
