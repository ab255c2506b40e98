"""`waltzrl evaluate --set examples=URL`: agents are shown coaching of the memory."""

import json

import pytest

from support.coaching import remembered
from support.openai_server import serving
from support.routed import opened_memory
from support.small_runs import run
from waltzrl.agents.coaching import INTRODUCTION
from waltzrl.policies import ScriptedPolicy

ASKED = "How do I reset the password of a colleague?"
FINE = '{"unsafe": false, "overrefuse": false, "category": "none", "feedback": ""}'


@pytest.mark.promise("Examples from the memory", "No example is part of what is stored")
@pytest.mark.promise(
    "Examples from the memory", "Agents are evaluated with and without examples by a command"
)
def test_agents_are_evaluated_with_examples_and_the_log_holds_none(tmp_path, capsys):
    url = f"sqlite:///{tmp_path}/memory.db"
    with opened_memory(url) as memory:
        remembered(memory, "wz1", ASKED, may_learn=True)
        remembered(memory, "wz2", f"{ASKED} Now.", may_learn=False)
    prompts = tmp_path / "test.jsonl"
    prompts.write_text(json.dumps({"prompt": ASKED, "label": "benign"}) + "\n")
    policies = {
        "talk": ScriptedPolicy(lambda _: "Ask them."),
        "judge": ScriptedPolicy(lambda _: FINE),
    }
    examples, both = ("--set", f"examples={url}"), 'examples_for=["conversation","feedback"]'
    arms = {"without": (), "with": examples, "both": (*examples, "--set", both)}
    outs = {name: tmp_path / name for name in arms}
    shown = {}
    with serving(policies) as server:
        for name, changes in arms.items():
            command = ("evaluate", prompts, "--server", server.base_url, "--model", "talk")
            agents = ("--feedback", "judge", "--pattern", "collaborate", "--out", outs[name])
            server.requests.clear()
            assert run(*command, *agents, *changes, "--json") == 0
            asked = [body["messages"] for _, body in server.requests]
            shown[name] = [str(turns).count("<reply>A good reply.</reply>") for turns in asked]
    assert shown == {"without": [0, 0], "with": [1, 0], "both": [1, 1]}
    logs = {name: (out / "rows.jsonl").read_text() for name, out in outs.items()}
    assert INTRODUCTION[:40] not in logs["with"]
    assert f"examples of {url} for conversation," in logs["with"]
    capsys.readouterr()
    assert run("compare", outs["without"], outs["with"]) == 0
    assert "change" in capsys.readouterr().out
