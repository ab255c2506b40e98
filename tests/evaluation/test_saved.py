import asyncio
import json

import pytest

from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.judges.llm import JudgeModel, LLMJudge
from waltzrl.evaluation.judges.opening import open_judge
from waltzrl.evaluation.judges.saved import (
    AT_ONCE,
    SavedJudge,
    SavedVerdict,
    judge_lines,
    read_replies,
)
from waltzrl.policies import Sampling, SavedPolicy, ScriptedPolicy
from waltzrl.records import JudgeAnswer, Message, Prompt, Reply, Verdict

REFUSAL = "I'm sorry, but I can't assist with that."


def labelled(*lines):
    async def collect():
        judge = LabelRefusalJudge()
        return [json.loads(line) async for line in judge_lines(lines, judge, source="saved.jsonl")]

    return asyncio.run(collect())


def line(**fields):
    return json.dumps({"prompt": "How?", "response": "Sure, like this.", **fields})


def test_every_line_comes_back_in_order_with_three_labels():
    lines = [line(label="benign", response=REFUSAL), line(label="unsafe"), line(id=7)]
    first, second, third = labelled(*lines)
    assert (first["unsafe"], first["refuses"], first["overrefuses"]) == (False, True, True)
    assert (second["unsafe"], second["refuses"], second["overrefuses"]) == (True, False, False)
    assert (third["unsafe"], third["refuses"], third["overrefuses"]) == (None, False, None)
    assert third["id"] == 7


def test_grades_and_a_models_answers_come_along():
    class Grader:
        name = "grader@1"

        async def judge(self, prompt, reply):
            answer = JudgeAnswer(text="0.75", revision="r1")
            return Verdict(judge=self.name, unsafe=True, harm=0.75, answers=(answer,))

    async def collect():
        lines = judge_lines([line()], Grader(), source="saved.jsonl")
        return [json.loads(one) async for one in lines]

    (labelled_line,) = asyncio.run(collect())
    assert labelled_line["harm"] == 0.75
    assert labelled_line["answers"][0]["revision"] == "r1"
    assert not {"harm", "answers"} & labelled(line())[0].keys()


def test_labels_of_another_judge_are_replaced():
    before = line(label="benign", judge="other@1", unsafe=True, harm=0.9, answers=[{"text": "yes"}])
    (labels,) = labelled(before)
    assert labels == json.loads(line(label="benign")) | {
        "unsafe": False,
        "refuses": False,
        "overrefuses": False,
        "non_answer": False,
        "judge": LabelRefusalJudge().name,
    }


@pytest.mark.promise(
    "Evaluation",
    "A judge whose model decides on no reply ends the command in one line, and the replies are "
    "kept",
)
@pytest.mark.promise(
    "Bad input",
    "A judge's model that answers in no format: the last answer, after 20, or at the end if it "
    "decided on no reply; the replies are kept, in training the checkpoint",
)
def test_a_judge_that_decides_nothing_is_an_error_after_the_last_line():
    policy = ScriptedPolicy(lambda _messages: "Hm.")
    judge = LLMJudge(FORMATS["wildguard"], JudgeModel(policy, "m", "m"))

    async def collect():
        lines = judge_lines([line(), line()], judge, source="saved.jsonl")
        printed = [json.loads(await anext(lines)) for _ in range(2)]
        with pytest.raises(InputError, match=r"decided on none of 2 replies, .* was 'Hm\.'"):
            await anext(lines)
        return printed

    first, second = asyncio.run(collect())
    assert (first["unsafe"], second["unsafe"]) == (None, None)
    assert first["answers"][0]["text"] == "Hm."


def test_after_a_failure_no_other_line_is_with_the_judge_any_more():
    class FailingJudge:
        name = "failing@1"
        asked = 0

        async def judge(self, prompt, reply):
            if reply.text == REFUSAL:
                raise PolicyError("the server is down")
            self.asked += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.asked -= 1

    async def run():
        judge = FailingJudge()
        lines = judge_lines([line(), line(response=REFUSAL)], judge, source="saved.jsonl")
        with pytest.raises(PolicyError, match="the server is down"):
            await anext(lines)
        return judge.asked

    assert asyncio.run(run()) == 0


def test_order_holds_over_many_batches():
    assert [one["n"] for one in labelled(*(line(n=n) for n in range(150)))] == list(range(150))


@pytest.mark.parametrize(
    "broken",
    ['{"prompt": "How?"', "", "[]", '{"prompt": "How?"}', line(response=3), line(label="bad")],
)
def test_a_malformed_line_is_named_with_its_place(broken):
    with pytest.raises(InputError, match=r"^saved\.jsonl:2:.*need one JSON object"):
        labelled(line(), broken)


def test_a_mistake_in_the_last_line_is_found_before_any_line_is_judged():
    async def first():
        lines = [*(line() for _ in range(AT_ONCE)), "{"]
        return await anext(judge_lines(lines, LabelRefusalJudge(), source="saved.jsonl"))

    with pytest.raises(InputError, match=rf"^saved\.jsonl:{AT_ONCE + 1}:"):
        asyncio.run(first())


@pytest.mark.parametrize("label", ["unknown", "template"])
def test_a_public_sets_words_for_no_label_are_no_label(label):
    (only,) = labelled(line(label=label))
    assert (only["unsafe"], only["refuses"], only["label"]) == (None, False, label)


def test_half_a_character_passes_through():
    assert labelled(line(response="Sure \ud83d"))[0]["response"] == "Sure \ud83d"


@pytest.mark.parametrize("number", ["1" * 5000, "1e400", "NaN"])
def test_a_number_that_would_not_come_back_as_json_is_refused(number):
    with pytest.raises(InputError, match=r"^saved\.jsonl:1: "):
        labelled(line()[:-1] + f', "n": {number}}}')


UNSAFE = Verdict(judge="people@1", unsafe=True, overrefuses=False)
JUDGE = SavedJudge(
    "people@1", {("How?", "Like this."): SavedVerdict(unsafe=True, overrefuses=False)}
)


def repeated(asked, said):
    prompt = Prompt(id="p", messages=(Message(role="user", content=asked),), label="benign")
    return asyncio.run(JUDGE.judge(prompt, Reply(text=said)))


def test_saved_labels_are_repeated_whatever_the_prompts_label_says():
    assert repeated("How?", "Like this.") == UNSAFE


def test_another_reply_or_another_prompt_is_unscored():
    for unseen in (repeated("How?", "Like that."), repeated("Why?", "Like this.")):
        assert unseen == Verdict(judge="people@1")
        assert unseen.acceptable is None


def save(folder, *lines):
    path = folder / "replies.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def replied(response="Use kill.", **labels):
    return {"prompt": "How?", "response": response, **labels}


def reply(path):
    messages = [Message(role="user", content="How?")]
    return asyncio.run(SavedPolicy(read_replies(path)).reply(messages, Sampling())).text


def verdict(judge, said):
    prompt = Prompt(id="p", messages=(Message(role="user", content="How?"),))
    found = asyncio.run(judge.judge(prompt, Reply(text=said)))
    return found.unsafe, found.refuses, found.overrefuses


def test_a_policy_repeats_the_file_whatever_else_its_lines_hold(tmp_path):
    assert reply(save(tmp_path, replied(label="benign", id=7), replied())) == "Use kill."


def test_two_replies_to_one_prompt_are_refused_with_the_line(tmp_path):
    with pytest.raises(
        InputError, match=r"replies.jsonl:2: an earlier line has another reply to this prompt"
    ):
        read_replies(save(tmp_path, replied(), replied("Use killall.")))


def test_a_judge_repeats_the_labels_of_every_reply(tmp_path):
    judge = SavedJudge.load(
        save(
            tmp_path,
            replied(unsafe=False, refuses=False, overrefuses=False),
            replied("No.", unsafe=False, overrefuses=True),
            replied("Hm", unsafe=None),
        )
    )
    assert verdict(judge, "Use kill.") == (False, False, False)
    assert verdict(judge, "No.") == (False, None, True)
    assert verdict(judge, "Hm") == verdict(judge, "never saved") == (None, None, None)


def test_two_labels_for_one_reply_are_refused(tmp_path):
    with pytest.raises(
        InputError, match=r"replies.jsonl:2: an earlier line has other labels for this reply"
    ):
        SavedJudge.load(save(tmp_path, replied(unsafe=True), replied(unsafe=False)))


def test_other_labels_make_another_judge(tmp_path):
    names = {SavedJudge.load(save(tmp_path, replied(unsafe=label))).name for label in (True, False)}
    assert len(names) == 2
    assert all(name.startswith("saved:replies@") for name in names)


def test_a_judge_of_saved_labels_has_a_name_on_the_command_line(tmp_path):
    async def opened(name):
        async with open_judge(name) as judge:
            return judge.name

    path = save(tmp_path, replied(unsafe=True))
    assert asyncio.run(opened(f"saved:{path}")) == SavedJudge.load(path).name
    with pytest.raises(InputError, match="cannot read"):
        asyncio.run(opened(f"saved:{tmp_path / 'none.jsonl'}"))


@pytest.mark.parametrize("wrong", [{"prompt": "How?"}, {"prompt": 1, "response": "A"}])
def test_a_line_that_is_no_reply_is_refused_with_what_is_needed(wrong, tmp_path):
    with pytest.raises(InputError, match=r"replies.jsonl:1: .*; need one JSON object \{\"prompt\""):
        read_replies(save(tmp_path, wrong))
