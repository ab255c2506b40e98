import asyncio
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from waltzrl.build.judges import JUDGE_NAMES, open_judge
from waltzrl.build.models import remote_policy
from waltzrl.cli.options import JudgeName
from waltzrl.errors import InputError
from waltzrl.records import Message, Prompt, Reply

ROOT = Path(__file__).parents[2]


def named(name):
    async def opened():
        async with open_judge(name) as judge:
            return judge.name

    return asyncio.run(opened())


def test_judges_are_made_by_name():
    assert named("refusal").startswith("label-refusal@")
    assert named("llm:org/guard@http://user@localhost:8000/v1").startswith("llm:org/guard@")


def test_a_set_with_labels_judges_what_is_asked_in_it_and_leaves_the_rest_open(tmp_path):
    file = tmp_path / "set.jsonl"
    lines = [("one", "unsafe"), ("two", "benign"), ("both", "unsafe"), ("both", "benign")]
    file.write_text("".join(json.dumps({"prompt": p, "label": k}) + "\n" for p, k in lines))

    async def verdicts():
        async with open_judge(f"labelled:{file}") as judge:
            assert judge.name.startswith("label-refusal@")
            return [
                await judge.judge(
                    Prompt(id="x", messages=(Message(role="user", content=turn),)), Reply(text=said)
                )
                for turn in ("one", "two", "both", "three")
                for said in ("Here you are.", "I'm sorry, but I can't help with that.")
            ]

    assert [(v.unsafe, v.overrefuses, v.refuses) for v in asyncio.run(verdicts())] == [
        (True, False, False),
        (False, False, True),
        (False, False, False),
        (False, True, True),
        *[(None, None, False), (None, None, True)] * 2,
    ]


@pytest.mark.parametrize(
    "name", ["llm", "labelled:", "llm:guard", "llm:@http://x", "llm:guard@", "oracle"]
)
def test_an_unknown_judge_is_refused_with_the_way_to_say_it(name):
    with pytest.raises(InputError, match=f"use {JUDGE_NAMES}"):
        named(name)


@pytest.mark.parametrize("server", ["localhost:8000", "http://", "ftp://x/y", "http://x:99999/v1"])
def test_what_is_no_address_is_refused_before_anything_is_asked(server):
    with pytest.raises(InputError, match="is not a server URL; use one such as http://"):
        remote_policy(server, "m")
    with pytest.raises(InputError, match="is not a server URL"):
        named(f"llm:guard@{server}")


def test_every_judge_is_in_the_help_and_in_the_docs():
    (option,) = get_args(JudgeName)[1:]
    documented = (ROOT / "docs/evaluation.md").read_text()
    for name in re.split(r", | or ", JUDGE_NAMES):
        assert name in option.help
        assert f"| `{name}`" in documented
