import asyncio
import json
import re
from pathlib import Path
from typing import get_args

import pytest

from support.openai_server import serving
from support.tiny_models import CHAT_TEMPLATE, tiny_model, tiny_tokenizer
from waltzrl.errors import InputError
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.opening import JUDGE_NAMES, OFFLINE_JUDGES, open_judge
from waltzrl.foundation.options import JudgeName
from waltzrl.policies import ScriptedPolicy
from waltzrl.policies.opening import remote_policy
from waltzrl.records import Message, Prompt, Reply

ROOT = Path(__file__).parents[2]


def named(name, **options):
    async def opened():
        async with open_judge(name, **options) as judge:
            return judge.name

    return asyncio.run(opened())


def test_judges_are_made_by_name():
    assert named("refusal").startswith("label-refusal@")
    assert named("harm").startswith("harm@")
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
    "name",
    ["llm", "labelled:", "llm:@http://x", "llm:guard@", "oracle", "refusal+refusal", "wildguard:"],
)
def test_an_unknown_judge_is_refused_with_the_way_to_say_it(name):
    with pytest.raises(InputError, match=re.escape(f"use {JUDGE_NAMES}")):
        named(name)


@pytest.mark.parametrize("server", ["localhost:8000", "http://", "ftp://x/y", "http://x:99999/v1"])
def test_what_is_no_address_is_refused_before_anything_is_asked(server):
    with pytest.raises(InputError, match="is not a server URL; use one such as http://"):
        remote_policy(server, "m")
    with pytest.raises(InputError, match="is not a server URL"):
        named(f"llm:guard@{server}")


def weights(folder, chat_template, family="llama"):
    """Save a tiny random model as a checkpoint."""
    causal_lm = tiny_model(family)
    tokenizer = tiny_tokenizer(chat_template)
    causal_lm.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.promise(
    "Evaluation",
    "A guard by server or in this process gives the probabilities of its labels, tokens and "
    "revision, and the log keeps them",
)
def test_a_guard_in_this_process_reads_its_probabilities(tmp_path):
    template = "{# First line must read 'safe' or 'unsafe' #}" + CHAT_TEMPLATE
    folder = weights(tmp_path / "my-guard", template)

    async def verdict():
        async with open_judge(f"llama-guard:{folder}") as judge:
            prompt = Prompt(id="x", messages=(Message(role="user", content="Hi"),))
            return judge.name, await judge.judge(prompt, Reply(text="Hello!"))

    name, judged = asyncio.run(verdict())
    assert re.fullmatch(r"llama-guard:my-guard@[0-9a-f]{12}@[0-9a-f]{8}", name)
    assert judged.judge == name
    assert (judged.unsafe, judged.prompt_harmful) == (None, None)  # random weights ramble
    about_reply, about_prompt = judged.answers
    assert 0 < about_reply.probabilities["unsafe"] < 1
    assert 0 < about_prompt.probabilities["prompt_harmful"] < 1
    assert about_reply.revision == name.split(":")[1].rpartition("@")[0]
    assert about_reply.usage.output_tokens > 0


def test_a_guard_without_a_chat_template_continues_a_text_in_this_process(tmp_path):
    causal_lm = tiny_model("llama", context=2048)
    causal_lm.model.save_pretrained(tmp_path / "guard")
    tiny_tokenizer(None).save_pretrained(tmp_path / "guard")

    async def verdict():
        async with open_judge(f"harmbench:{tmp_path / 'guard'}") as judge:
            prompt = Prompt(id="x", messages=(Message(role="user", content="Hi"),))
            return await judge.judge(prompt, Reply(text="Hello!"))

    (answer,) = asyncio.run(verdict()).answers
    assert 0 < answer.probabilities["unsafe"] < 1


def test_other_weights_are_another_judge(tmp_path):
    template = "guardian_config" + CHAT_TEMPLATE
    one = named(f"granite-guardian:{weights(tmp_path / 'a' / 'guard', template)}")
    two = named(f"granite-guardian:{weights(tmp_path / 'b' / 'guard', template, 'qwen2')}")
    assert one != two


@pytest.mark.promise("Evaluation", "A guard is not asked in another one's format")
@pytest.mark.promise(
    "Bad input", "A guard model in the format of another: the model, and its own format"
)
def test_weights_of_another_kind_of_guard_are_refused(tmp_path):
    folder = weights(tmp_path / "guard", CHAT_TEMPLATE)
    with pytest.raises(InputError, match="is no model for 'llama-guard': its chat template does"):
        named(f"llama-guard:{folder}")
    wild = weights(tmp_path / "wildguard-7b", "'safe' or 'unsafe'" + CHAT_TEMPLATE)
    with pytest.raises(InputError, match="use wildguard:wildguard-7b"):
        named(f"llama-guard:{wild}")
    for kind, need in (("wildguard", "mistral"), ("harmbench", "llama")):
        other = weights(tmp_path / f"{kind}-weights" / "guard", None, "qwen2")
        with pytest.raises(InputError, match=f"its architecture is 'qwen2', need '{need}'"):
            named(f"{kind}:{other}")
    with pytest.raises(InputError, match="use qwen3guard:Qwen3Guard-Gen-8B"):
        named("wildguard:Qwen3Guard-Gen-8B@http://localhost:8000/v1")


@pytest.mark.promise(
    "Evaluation", "The set's label or the judge decides on the prompt, by one choice for all judges"
)
@pytest.mark.parametrize(
    "name",
    ["refusal", "harmbench:guard@http://localhost:1/v1", "strong-reject:m@http://localhost:1/v1"],
)
def test_a_judge_that_says_nothing_of_prompts_cannot_decide_on_them(name):
    with pytest.raises(InputError, match="does not say whether a prompt is harmful; leave out"):
        named(name, judges_prompts=True)


def test_answers_are_kept_where_the_environment_says(tmp_path, monkeypatch):
    asked = []

    def answer(messages):
        asked.append(messages)
        return "no"

    async def verdict(server):
        async with open_judge(f"llm:m@{server}", cached=True) as judge:
            prompt = Prompt(id="x", messages=(Message(role="user", content="Hi"),))
            return await judge.judge(prompt, Reply(text="Hello!"))

    with serving({"m": ScriptedPolicy(answer)}) as server:
        for place, calls in (("off", 4), ("off", 8), (str(tmp_path / "a.sqlite"), 12)):
            monkeypatch.setenv("WALTZRL_JUDGE_CACHE", place)
            first = asyncio.run(verdict(server.base_url))
            assert len(asked) == calls
        assert asyncio.run(verdict(server.base_url)) == first
        monkeypatch.delenv("WALTZRL_JUDGE_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        asyncio.run(verdict(server.base_url))
    assert len(asked) == 16
    assert (tmp_path / "waltzrl" / "judge-answers.sqlite").exists()


def test_every_judge_is_in_the_help_and_in_the_docs():
    (option,) = get_args(JudgeName)[1:]
    documented = (ROOT / "docs/evaluation.md").read_text()
    assert JUDGE_NAMES in option.help.replace("\n", " ")
    for name in [*OFFLINE_JUDGES, "saved:FILE", "labelled:SET"]:
        assert f"| `{name}`" in documented
    for kind in FORMATS:
        assert f"| `{kind}:MODEL@URL`" in documented
