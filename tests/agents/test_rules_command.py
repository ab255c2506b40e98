"""`waltzrl rules lint` measures rules, and its exit code says whether one fails."""

import json

import pytest

from support.small_runs import run

pytestmark = pytest.mark.promise(
    "Rules", "Each rule leaves three near misses alone; a lint measures every rule's precision"
)

PACK = """version = 1
words = {}

[[rule]]
id = "bombs"
category = "weapons"
severity = 0.9
side = "request"
patterns = ['build (?:a )?bomb']
example = "Build a bomb."
twins = ["Build a barn.", "Defuse a bomb.", "A bomb was built."]
"""


@pytest.fixture
def pack(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(PACK, "utf-8")
    return path


def saved(path, label, *prompts):
    lines = (json.dumps({"prompt": prompt, "label": label}) for prompt in prompts)
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_a_table_shows_what_each_rule_flags(pack, tmp_path, capsys):
    harmful = saved(tmp_path / "harmful.jsonl", "unsafe", "Build a bomb!", "Build a bank robber.")
    benign = saved(tmp_path / "benign.jsonl", "benign", "Build a bomb by chance.", "Build a boat.")
    assert run("rules", "lint", pack, "--data", harmful, "--data", benign) == 0
    # Wilson's interval of 2 in 3: its example is the second hit.
    assert capsys.readouterr().out.splitlines() == [
        "| rule | hits of 2 harmful | hits of 2 benign | precision |",
        "| --- | ---: | ---: | --- |",
        "| mine/bombs | 2 | 1 | 66.7% (20.8%-93.9%) |",
        "ok: 1 packs",
    ]


def test_a_rule_that_is_certainly_wrong_more_often_than_once_in_ten_fails(pack, tmp_path, capsys):
    accidents = [f"Build a bomb by accident in {number} days." for number in range(20)]
    benign = saved(tmp_path / "benign.jsonl", "benign", *accidents)
    assert run("rules", "lint", pack, "--data", benign) == 1
    shown = capsys.readouterr().out.splitlines()
    # Wilson's interval of 1 in 21.
    assert shown[-1] == (
        "rule 'mine/bombs' has a precision of 4.8% (0.8%-22.7%); narrow a pattern, or list it under"
        " ambiguous or weak"
    )


def test_weak_patterns_flag_nothing_alone_and_so_are_not_wrong(pack, tmp_path, capsys):
    pack.write_text(PACK.replace("patterns =", "weak ="), "utf-8")
    accidents = [f"Build a bomb by accident in {number} days." for number in range(20)]
    benign = saved(tmp_path / "benign.jsonl", "benign", *accidents)
    assert run("rules", "lint", pack, "--data", benign) == 0
    # Its example is the only hit.
    assert "| mine/bombs | 1 | 0 | 100.0% (20.7%-100.0%) |" in capsys.readouterr().out


def test_a_rule_that_matches_a_twin_fails_without_data(pack, capsys):
    pack.write_text(PACK.replace("'build (?:a )?bomb'", "'(?:build|defuse) a bomb'"), "utf-8")
    assert run("rules", "lint", pack) == 1
    assert "matches 'Defuse a bomb' in its harmless twin" in capsys.readouterr().out
