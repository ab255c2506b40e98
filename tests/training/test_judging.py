"""What the judge of a run answered is kept, within bounds, and is of one revision."""

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from waltzrl.errors import PolicyError
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.judges.llm import JudgeModel, LLMJudge
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Message, Prompt, Reply
from waltzrl.training.judging import ANSWERS, ANSWERS_BEFORE, RunJudge, forget_answers

PROMPT = Prompt(id="p", messages=(Message(role="user", content="How?"),), label="benign")
SAFE = "Harmful request: no\nResponse refusal: no\nHarmful response: no"


def opened(folder, *said, revision="v1", **bounds):
    policy = ScriptedPolicy(said)
    policy.revision = revision
    model = JudgeModel(policy, "m", "m")
    return RunJudge(LLMJudge(FORMATS["wildguard"], model), folder, **bounds)


def asked(judge, count):
    async def all_of_them():
        return [await judge.judge(PROMPT, Reply(text=f"reply {n}")) for n in range(count)]

    return asyncio.run(all_of_them())


def judged(folder, *said, **settings):
    """Judge a reply for each answer of the judge's model, as a run that begins or goes on does."""
    return asked(opened(folder, *said, **settings), len(said))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.promise(
    "Training",
    "A run keeps what its judge's model answered, within bounds, and is judged by one revision of "
    "it",
)
def test_answers_are_kept_with_their_prompt_those_that_nobody_can_read_too(tmp_path):
    verdicts = judged(tmp_path, SAFE, "Hm.")
    assert [verdict.unsafe for verdict in verdicts] == [False, None]
    first, second = lines(tmp_path / ANSWERS)
    assert (first["prompt"], first["verdict"]["unsafe"]) == ("p", False)
    assert first["verdict"]["answers"][0]["text"] == SAFE
    assert second["verdict"]["unsafe"] is None
    assert second["verdict"]["answers"][0] == {
        "text": "Hm.",
        "probabilities": {},
        "revision": "v1",
        "usage": None,
    }


@pytest.mark.promise(
    "Training",
    "A run keeps what its judge's model answered, within bounds, and is judged by one revision of "
    "it",
)
@pytest.mark.promise(
    "Bad input",
    "A judge's model that changes its revision, in a run or between two: both revisions; the rows "
    "before are kept",
)
def test_a_run_that_goes_on_is_judged_by_the_same_revision_or_not_at_all(tmp_path):
    judged(tmp_path, SAFE)
    with pytest.raises(PolicyError, match=r"of revision 'v2', and was of 'v1' before in this run"):
        judged(tmp_path, SAFE, revision="v2")
    judged(tmp_path, SAFE)
    assert len(lines(tmp_path / ANSWERS)) == 2
    forget_answers(tmp_path)
    judged(tmp_path, SAFE, revision="v2")


@pytest.mark.promise(
    "Training",
    "A run keeps what its judge's model answered, within bounds, and is judged by one revision of "
    "it",
)
def test_a_full_file_makes_room_and_the_revision_is_known_all_the_same(tmp_path):
    judged(tmp_path, SAFE)
    line = (tmp_path / ANSWERS).stat().st_size
    judged(tmp_path, *[SAFE] * 7, most_bytes=3 * line)
    assert len(lines(tmp_path / ANSWERS_BEFORE)) == 3  # of 8, the first three were dropped
    assert len(lines(tmp_path / ANSWERS)) == 2
    (tmp_path / ANSWERS).unlink()
    with pytest.raises(PolicyError, match="was of 'v1'"):
        judged(tmp_path, SAFE, revision="v2")


def test_a_line_that_a_crash_cut_short_is_dropped(tmp_path):
    judged(tmp_path, SAFE)
    whole = (tmp_path / ANSWERS).read_bytes()
    (tmp_path / ANSWERS).write_bytes(whole + whole[:20])
    judged(tmp_path, SAFE)
    assert (tmp_path / ANSWERS).read_bytes() == whole * 2


def test_a_line_that_a_process_left_when_it_died_is_dropped_by_the_others(tmp_path):
    judge = opened(tmp_path, SAFE, SAFE)
    asked(judge, 1)
    whole = (tmp_path / ANSWERS).read_bytes()
    (tmp_path / ANSWERS).write_bytes(whole + whole[:20])
    asked(judge, 1)
    assert (tmp_path / ANSWERS).read_bytes() == whole * 2


def test_processes_that_begin_together_are_judged_by_one_revision(tmp_path):
    first, second = opened(tmp_path, SAFE), opened(tmp_path, SAFE, revision="v2")
    asked(first, 1)
    with pytest.raises(PolicyError, match=r"of revision 'v2', and was of 'v1' before in this run"):
        asked(second, 1)


def test_several_may_write_at_once_also_where_the_file_is_full(tmp_path):
    judges = [opened(tmp_path, *[SAFE] * 100, most_bytes=1) for _ in range(4)]
    with ThreadPoolExecutor(len(judges)) as pool:
        list(pool.map(asked, judges, [100] * len(judges)))
    assert len(lines(tmp_path / ANSWERS_BEFORE)) == 1
    assert not (tmp_path / ANSWERS).exists()


def test_a_judge_without_a_model_writes_nothing(tmp_path):
    judge = RunJudge(LabelRefusalJudge(), tmp_path)
    assert asyncio.run(judge.judge(PROMPT, Reply(text="Sorry, I can't."))).overrefuses is True
    assert judge.name == LabelRefusalJudge().name
    assert list(tmp_path.iterdir()) == []
