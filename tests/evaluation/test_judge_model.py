"""What a judge's model answered is kept, asked once, and told apart from another model's."""

import asyncio
import json
from concurrent.futures import ProcessPoolExecutor

import msgspec
import pytest

from support.openai_server import serving
from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation.judges.answers import AnswerCache
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.llm import UNREADABLE, JudgeModel, LLMJudge
from waltzrl.policies import RemotePolicy, ScriptedPolicy
from waltzrl.records import JudgeAnswer, Message, Prompt, Reply, Usage, Verdict

PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))
SAFE = "Harmful request: no\nResponse refusal: no\nHarmful response: no"


def guard(policy, answers=None, kind="wildguard", identity="m"):
    return LLMJudge(FORMATS[kind], JudgeModel(policy, "m", identity, answers))


def judged(judge, *texts):
    async def all_of_them():
        return [await judge.judge(PROMPT, Reply(text=text)) for text in texts]

    return asyncio.run(all_of_them())


def judged_by(server, *texts, kind="wildguard", retries=3):
    """Judge texts with the model `guard` behind a server."""

    async def all_of_them():
        async with RemotePolicy(server, "guard", retries=retries) as policy:
            judge = guard(policy, kind=kind)
            return [await judge.judge(PROMPT, Reply(text=text)) for text in texts]

    return asyncio.run(all_of_them())


@pytest.mark.promise(
    "Evaluation",
    "A judge's model is asked the same only once, by several processes too, and the file tells "
    "nothing of what was asked",
)
def test_the_same_is_not_asked_twice_by_another_process_either(tmp_path):
    policy = ScriptedPolicy(lambda _messages: SAFE)
    with AnswerCache(tmp_path / "a" / "answers.sqlite") as answers:
        first = judged(guard(policy, answers), "one", "two", "one")
    assert len(policy.conversations) == 2
    with AnswerCache(tmp_path / "a" / "answers.sqlite") as answers:
        again = judged(guard(policy, answers), "one", "two", "one", "three")
    assert again[:3] == first
    assert len(policy.conversations) == 3


def test_another_model_or_another_format_is_asked_itself(tmp_path):
    policy = ScriptedPolicy(lambda messages: SAFE if "INST" in messages[0].content else "safe")
    with AnswerCache(tmp_path / "answers.sqlite") as answers:
        judged(guard(policy, answers), "one")
        judged(guard(policy, answers, identity="other"), "one")
        judged(guard(policy, answers, kind="llama-guard"), "one")
        judged(guard(policy, answers, kind="qwen3guard"), "one")
    assert len(policy.conversations) == 6  # 1, 1, and 2 of a format with two questions, twice


def test_answers_that_cannot_be_read_are_asked_again(tmp_path):
    said = iter(["What?", SAFE])
    policy = ScriptedPolicy(lambda _messages: next(said))
    with AnswerCache(tmp_path / "answers.sqlite") as answers:
        judge = guard(policy, answers)
        assert [v.unsafe for v in judged(judge, "one", "one", "one")] == [None, False, False]


@pytest.mark.promise(
    "Evaluation",
    "A judge's model is asked the same only once, by several processes too, and the file tells "
    "nothing of what was asked",
)
def test_the_cache_holds_no_text_of_what_was_asked(tmp_path):
    path = tmp_path / "answers.sqlite"
    with AnswerCache(path) as answers:
        judged(guard(ScriptedPolicy(lambda _messages: SAFE), answers), "Use the kill command.")
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"kill" not in content
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.promise(
    "Evaluation",
    "A judge's model is asked the same only once, by several processes too, and the file tells "
    "nothing of what was asked",
)
def test_the_oldest_answers_make_room(tmp_path):
    with AnswerCache(tmp_path / "answers.sqlite", most=3) as answers:
        for key in "abcd":
            answers.put(key, JudgeAnswer(text=key))
        answers.put("b", JudgeAnswer(text="again"))
        answers.put("e", JudgeAnswer(text="e"))
        kept = {key: answer.text for key in "abcde" if (answer := answers.get(key))}
    assert kept == {"d": "d", "b": "again", "e": "e"}


def _put_many(path, first):
    with AnswerCache(path) as answers:
        for number in range(first, first + 50):
            answers.put(str(number), JudgeAnswer(text=str(number)))


@pytest.mark.promise(
    "Evaluation",
    "A judge's model is asked the same only once, by several processes too, and the file tells "
    "nothing of what was asked",
)
def test_processes_write_at_once(tmp_path):
    path = tmp_path / "answers.sqlite"
    with ProcessPoolExecutor(2) as pool:
        list(pool.map(_put_many, [path] * 3, [0, 25, 50]))
    with AnswerCache(path) as answers:
        assert [answers.get(str(n)).text for n in range(100)] == [str(n) for n in range(100)]


@pytest.mark.promise("Bad input", "A file of judges' answers that is something else: the file")
def test_what_is_no_cache_is_refused_by_name(tmp_path):
    path = tmp_path / "answers.sqlite"
    path.write_text("not a database, but long enough to be looked at as one" * 40)
    with pytest.raises(InputError, match=r"answers\.sqlite.*delete the file.*WALTZRL_JUDGE_CACHE"):
        AnswerCache(path)


@pytest.mark.promise(
    "Evaluation",
    "A guard by server or in this process gives the probabilities of its labels, tokens and "
    "revision, and the log keeps them",
)
def test_a_server_tells_probabilities_tokens_and_revision():
    reply = Reply(text=SAFE, usage=Usage(input_tokens=90, output_tokens=18))

    class Policy:
        async def reply(self, _messages, _sampling):
            return reply

    with serving({"guard": Policy()}) as server:
        server.fingerprint = "fp_1"
        server.odds = {"no": {" no": 0.6, " yes": 0.2, " maybe": 0.2}}
        (verdict,) = judged_by(server.base_url, "Use kill.")
    (answer,) = verdict.answers
    assert answer.text == SAFE
    assert answer.revision == "guard fp_1"
    assert answer.usage == Usage(input_tokens=90, output_tokens=18, model="guard")
    assert answer.probabilities == {
        label: pytest.approx(0.25) for label in ("prompt_harmful", "refuses", "unsafe")
    }
    (request,) = [body for _headers, body in server.requests]
    assert request["prompt"].endswith("<|assistant|>\n")
    assert request["logprobs"] == 5


def test_a_server_that_gives_no_probabilities_still_judges():
    with serving({"guard": ScriptedPolicy(lambda _messages: SAFE)}) as server:
        server.rejects = {"logprobs"}
        one, two = judged_by(server.base_url, "one", "two")
    assert one.unsafe is two.unsafe is False
    assert one.answers[0].probabilities == {}
    assert len(server.requests) == 3  # with log-probabilities once, and then never again


def test_chat_guards_get_the_arguments_of_their_template():
    with serving({"guard": ScriptedPolicy(lambda _messages: "No")}) as server:
        (verdict,) = judged_by(server.base_url, "Use kill.", kind="shieldgemma")
    assert verdict.unsafe is False
    guidelines = [body["chat_template_kwargs"]["guideline"] for _headers, body in server.requests]
    assert len(set(guidelines)) == 8


@pytest.mark.promise("Evaluation", "Verdicts of two revisions of a model do not mix")
@pytest.mark.promise(
    "Bad input",
    "A judge's model that changes its revision, in a run or between two: both revisions; the rows "
    "before are kept",
)
def test_a_model_that_changes_is_asked_no_more(tmp_path):
    with (
        serving({"guard": ScriptedPolicy(lambda _messages: SAFE)}) as server,
        AnswerCache(tmp_path / "answers.sqlite") as answers,
    ):

        async def run():
            async with RemotePolicy(server.base_url, "guard") as policy:
                judge = guard(policy, answers)
                await judge.judge(PROMPT, Reply(text="one"))
                server.model = "guard-v2"
                for _ in range(2):
                    with pytest.raises(PolicyError, match="from revision 'guard' to 'guard-v2'"):
                        await judge.judge(PROMPT, Reply(text="two"))
                later = guard(policy, answers)
                kept = await later.judge(PROMPT, Reply(text="one"))
                assert kept.answers[0].revision == "guard"
                with pytest.raises(PolicyError, match=r"delete .*answers\.sqlite"):
                    await later.judge(PROMPT, Reply(text="three"))
                fresh = guard(policy, answers)
                await fresh.judge(PROMPT, Reply(text="three"))
                anew = await fresh.judge(PROMPT, Reply(text="one"))
                assert anew.answers[0].revision == "guard-v2"

        asyncio.run(run())
    assert len(server.requests) == 5  # one, two, three, three, and one anew


@pytest.mark.promise("Evaluation", "A guard is not asked in another one's format")
@pytest.mark.promise(
    "Bad input",
    "A judge's model that answers in no format: the last answer, after 20, or at the end if it "
    "decided on no reply; the replies are kept, in training the checkpoint",
)
def test_a_model_that_never_answers_in_its_format_is_asked_no_more():
    policy = ScriptedPolicy(lambda _messages: "As an AI model, I would say that this is fine.")
    judge = guard(policy)
    unscored = judged(judge, *map(str, range(UNREADABLE - 1)))
    assert {(v.unsafe, v.refuses, v.prompt_harmful) for v in unscored} == {(None, None, None)}
    with pytest.raises(PolicyError, match=r"first 20 answers .* last was 'As an AI model"):
        judged(judge, "last")
    with pytest.raises(PolicyError, match="is it another model"):
        judged(judge, "one more")
    assert len(policy.conversations) == UNREADABLE


def test_a_model_that_once_answered_may_ramble():
    said = iter([SAFE, *["What?"] * 30])
    verdicts = judged(guard(ScriptedPolicy(lambda _messages: next(said))), *map(str, range(31)))
    assert [v.unsafe for v in verdicts] == [False, *[None] * 30]


def test_a_server_that_is_down_is_an_error_and_no_verdict():
    with pytest.raises(PolicyError, match="connection failed"):
        judged_by("http://127.0.0.1:9", "one", retries=0)


def test_answers_are_kept_in_the_verdict_as_json_that_can_be_read_again():
    (verdict,) = judged(guard(ScriptedPolicy(lambda _messages: SAFE)), "Use kill.")
    assert msgspec.convert(json.loads(json.dumps(msgspec.to_builtins(verdict))), Verdict) == verdict
