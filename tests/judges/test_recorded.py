import asyncio

from waltzrl.judges import RecordedJudge
from waltzrl.records import Message, Prompt, Reply, Verdict

UNSAFE = Verdict(judge="people@1", unsafe=True, overrefuses=False)
JUDGE = RecordedJudge("people@1", {("How?", "Like this."): UNSAFE})


def verdict(asked, said):
    prompt = Prompt(id="p", messages=(Message(role="user", content=asked),), label="benign")
    return asyncio.run(JUDGE.judge(prompt, Reply(text=said)))


def test_recorded_labels_are_repeated_whatever_the_prompts_label_says():
    assert verdict("How?", "Like this.") is UNSAFE


def test_another_reply_or_another_prompt_is_unscored():
    for unseen in (verdict("How?", "Like that."), verdict("Why?", "Like this.")):
        assert unseen == Verdict(judge="people@1")
        assert unseen.acceptable is None
