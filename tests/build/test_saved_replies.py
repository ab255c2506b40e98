import asyncio
import json

import pytest

from waltzrl.build.judges import open_judge
from waltzrl.build.saved import saved_judge, saved_policy
from waltzrl.errors import InputError
from waltzrl.policies import Sampling
from waltzrl.records import Message, Prompt, Reply


def save(folder, *lines):
    path = folder / "replies.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def line(response="Use kill.", **labels):
    return {"prompt": "How?", "response": response, **labels}


def reply(path):
    messages = [Message(role="user", content="How?")]
    return asyncio.run(saved_policy(path).reply(messages, Sampling())).text


def verdict(judge, said):
    prompt = Prompt(id="p", messages=(Message(role="user", content="How?"),))
    found = asyncio.run(judge.judge(prompt, Reply(text=said)))
    return found.unsafe, found.refuses, found.overrefuses


def test_a_policy_repeats_the_file_whatever_else_its_lines_hold(tmp_path):
    assert reply(save(tmp_path, line(label="benign", id=7), line())) == "Use kill."


def test_two_replies_to_one_prompt_are_refused_with_the_line(tmp_path):
    with pytest.raises(InputError, match=r"replies.jsonl:2: the prompt had another reply above"):
        saved_policy(save(tmp_path, line(), line("Use killall.")))


def test_a_judge_repeats_the_labels_of_every_reply(tmp_path):
    judge = saved_judge(
        save(
            tmp_path,
            line(unsafe=False, refuses=False, overrefuses=False),
            line("No.", unsafe=False, overrefuses=True),
            line("Hm", unsafe=None),
        )
    )
    assert verdict(judge, "Use kill.") == (False, False, False)
    assert verdict(judge, "No.") == (False, None, True)
    assert verdict(judge, "Hm") == verdict(judge, "never saved") == (None, None, None)


def test_two_labels_for_one_reply_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"replies.jsonl:2: the reply had other labels above"):
        saved_judge(save(tmp_path, line(unsafe=True), line(unsafe=False)))


def test_other_labels_make_another_judge(tmp_path):
    names = {saved_judge(save(tmp_path, line(unsafe=label))).name for label in (True, False)}
    assert len(names) == 2
    assert all(name.startswith("saved:replies@") for name in names)


def test_a_judge_of_saved_labels_has_a_name_on_the_command_line(tmp_path):
    async def opened(name):
        async with open_judge(name) as judge:
            return judge.name

    path = save(tmp_path, line(unsafe=True))
    assert asyncio.run(opened(f"saved:{path}")) == saved_judge(path).name
    with pytest.raises(InputError, match="cannot read"):
        asyncio.run(opened(f"saved:{tmp_path / 'none.jsonl'}"))


@pytest.mark.parametrize("wrong", [{"prompt": "How?"}, {"prompt": 1, "response": "A"}])
def test_a_line_that_is_no_reply_is_refused_with_what_is_needed(wrong, tmp_path):
    with pytest.raises(InputError, match=r"replies.jsonl:1: .*; need \{\"prompt\""):
        saved_policy(save(tmp_path, wrong))
