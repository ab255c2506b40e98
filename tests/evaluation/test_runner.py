import asyncio
import json
import os
import resource
from dataclasses import replace

import pytest

from support.evaluation_rows import PrefixJudge, Talk, prompt, reply
from waltzrl.agents import ConversationAgent, load_wording
from waltzrl.collaboration import collaborate, draft_only
from waltzrl.errors import InputError, PolicyError
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.evaluation.judges.llm import JudgeModel, LLMJudge
from waltzrl.evaluation.patterns import best_of_3
from waltzrl.evaluation.rows import EvaluationRow, read_evaluation, read_rows, without_tokens
from waltzrl.evaluation.runner import evaluate, rescore
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import Collaboration, Feedback, JudgeAnswer, Reply, Round, Verdict

PROMPTS = [prompt(f"b{n}", text=f"Question {n}") for n in range(5)]


def play(talk, folder, prompts=PROMPTS, judge=None, progress=lambda done, total: None):
    systems = [talk.system("base", draft_only), talk.system("pair", collaborate)]
    return asyncio.run(evaluate(systems, prompts, judge or PrefixJudge(), folder, 3, progress))


def without_time(rows):
    return [(r.key, r.judge, r.judged, r.tokens, r.error) for r in rows]


class LenientJudge:
    name = "lenient@1"

    async def judge(self, prompt, reply):
        return Verdict(judge=self.name, unsafe=False, refuses=False, overrefuses=False)


def test_every_system_meets_every_prompt(tmp_path):
    seen = []
    rows = play(Talk(), tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert [r.key for r in rows] == [(c, (p.id, 0)) for c in ("base", "pair") for p in PROMPTS]
    assert [v.overrefuses for v in rows[0].judged.verdicts] == [True]
    assert [v.overrefuses for v in rows[5].judged.verdicts] == [True, False]
    assert rows[5].judged.collaboration.rounds[0].feedback.text == "Answer it."
    assert seen == [(n, 10) for n in range(1, 11)]


def test_the_log_replays_the_rows(tmp_path):
    rows = play(Talk(), tmp_path)
    assert sorted(read_rows(tmp_path), key=lambda r: r.key) == sorted(rows, key=lambda r: r.key)


def test_a_second_run_generates_nothing(tmp_path):
    first = play(Talk(), tmp_path)
    idle = Talk()
    assert play(idle, tmp_path) == first
    assert idle.drafts == 0


def test_a_run_cut_off_anywhere_is_completed(tmp_path):
    whole = play(Talk(), tmp_path)
    log = (tmp_path / "rows.jsonl").read_bytes()
    for cut in (0, 1, len(log) // 3, len(log) // 2, len(log) - 1):
        (tmp_path / "rows.jsonl").write_bytes(log[:cut])
        kept = log[:cut].count(b"\n")
        talk = Talk()
        assert without_time(play(talk, tmp_path)) == without_time(whole)
        assert talk.drafts == 10 - kept
        assert (tmp_path / "rows.jsonl").read_bytes().count(b"\n") == 10


def test_a_changed_prompt_is_played_again(tmp_path):
    play(Talk(), tmp_path)
    talk = Talk()
    rows = play(talk, tmp_path, [*PROMPTS[:4], prompt("b4", text="Something else")])
    assert talk.drafts == 2
    assert rows[4].judged.collaboration.prompt.messages[0].content == "Something else"
    assert len(read_rows(tmp_path)) == 10


def test_a_failure_is_recorded_and_tried_again(tmp_path):
    rows = play(Talk(down=["Question 2"]), tmp_path)
    assert [r.prompt_id for r in rows if r.error] == ["b2", "b2"]
    assert rows[2].error == "server is down"
    assert rows[2].judged is None
    talk = Talk()
    assert not any(r.error for r in play(talk, tmp_path))
    assert talk.drafts == 2
    assert not any(r.error for r in read_rows(tmp_path))


def test_rescoring_equals_a_fresh_run_with_that_judge(tmp_path):
    play(Talk(), tmp_path / "old")
    fresh = play(Talk(), tmp_path / "fresh", judge=LenientJudge())
    rescored = asyncio.run(rescore(tmp_path / "old", LenientJudge(), tmp_path / "new", 4))
    assert sorted(without_time(rescored), key=str) == sorted(without_time(fresh), key=str)
    assert read_rows(tmp_path / "new") == rescored
    assert {r.judge for r in read_rows(tmp_path / "old")} == {"prefix@1"}


def test_rescoring_in_place_keeps_failures_for_the_next_run(tmp_path):
    play(Talk(down=["Question 2"]), tmp_path)
    asyncio.run(rescore(tmp_path, LenientJudge(), tmp_path, 4))
    talk = Talk()
    rows = play(talk, tmp_path, judge=LenientJudge())
    assert talk.drafts == 2
    assert {r.judge for r in rows} == {"lenient@1"}


def test_another_judge_is_told_to_rescore(tmp_path):
    play(Talk(), tmp_path)
    with pytest.raises(InputError, match=r"judged by prefix@1.*lenient@1; rescore"):
        play(Talk(), tmp_path, judge=LenientJudge())


def test_rows_by_other_agents_are_refused_and_kept(tmp_path):
    def play_as(agents, talk):
        system = replace(talk.system("base", draft_only), agents=agents)
        run = evaluate([system], PROMPTS, PrefixJudge(), tmp_path, 3, lambda *_: None)
        return asyncio.run(run)

    play_as("old weights", Talk(down=["Question 2"]))
    log = (tmp_path / "rows.jsonl").read_bytes()
    with pytest.raises(InputError, match="'base' by old weights, this run has new w"):
        play_as("new weights", Talk())
    assert (tmp_path / "rows.jsonl").read_bytes() == log
    assert {row.agents for row in play_as("old weights", Talk())} == {"old weights"}


def test_failed_rows_bind_nobody(tmp_path):
    everything = [asked.messages[0].content for asked in PROMPTS]
    play(Talk(down=everything), tmp_path)
    system = replace(Talk().system("base", draft_only), agents="the right server")
    run = evaluate([system], PROMPTS, PrefixJudge(), tmp_path, 3, lambda *_: None)
    assert not any(row.error for row in asyncio.run(run))


def test_a_log_that_cannot_be_read_is_one_line(tmp_path):
    (tmp_path / "rows.jsonl").mkdir()
    with pytest.raises(InputError, match=r"cannot read .*rows\.jsonl: Is a directory"):
        read_evaluation(tmp_path)


def test_nothing_to_rescore_is_said(tmp_path):
    with pytest.raises(InputError, match="holds no evaluation"):
        asyncio.run(rescore(tmp_path, PrefixJudge(), tmp_path, 4))


def test_an_empty_set_is_refused(tmp_path):
    with pytest.raises(InputError, match="2 patterns on 0 prompts"):
        play(Talk(), tmp_path, prompts=[])


def test_repeated_ids_are_refused(tmp_path):
    with pytest.raises(InputError, match="prompt id 'b0' occurs 2 times"):
        play(Talk(), tmp_path, prompts=[PROMPTS[0], PROMPTS[0]])


def test_a_broken_line_is_named(tmp_path):
    play(Talk(), tmp_path)
    log = tmp_path / "rows.jsonl"
    lines = log.read_text().splitlines()
    for broken in ("{", '{"pattern": 3}', '"text"'):
        log.write_text("\n".join([lines[0], broken, *lines[1:]]) + "\n")
        with pytest.raises(InputError, match=r"rows.jsonl:2: not an evaluation row"):
            read_rows(tmp_path)


def test_an_unwritable_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(InputError, match=r"cannot write .*file: File exists"):
        play(Talk(), tmp_path / "file")


def test_a_full_disk_is_one_line_and_the_evaluation_goes_on_later(tmp_path):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))  # what is written beyond it fails
    try:
        with pytest.raises(InputError, match=r"cannot write .*rows.jsonl: File too large; free"):
            play(Talk(), tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    kept = len(read_rows(tmp_path))
    assert 0 < kept < 10
    talk = Talk()
    play(talk, tmp_path)
    assert talk.drafts == 10 - kept


def test_tokens_do_not_reach_the_log():
    feedback = Feedback(unsafe=True, overrefuse=False, reply=reply("f"))
    said = Collaboration(
        prompt=PROMPTS[0],
        draft=reply("d"),
        rounds=(Round(feedback=feedback, revision=reply("r")), Round(feedback=feedback)),
    )
    bare = without_tokens(said)
    assert all(r.tokens is None for r in bare.replies)
    assert all(r.feedback.reply.tokens is None for r in bare.rounds)
    assert [r.text for r in bare.replies] == ["d", "r"]
    assert [r.usage.output_tokens for r in bare.replies] == [5, 5]


def test_a_lone_surrogate_survives_the_log(tmp_path):
    asked = prompt("b0", text="half a pair: \ud83d")
    play(Talk(), tmp_path, prompts=[asked])
    assert read_rows(tmp_path)[0].judged.collaboration.prompt == asked


def test_each_line_is_one_json_object(tmp_path):
    play(Talk(), tmp_path)
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    first = json.loads(lines[0])
    assert first["judged"]["collaboration"]["draft"]["text"] == "I cannot help."
    assert set(first) == set(EvaluationRow.__dataclass_fields__)


def test_a_chunk_starts_in_one_pass_of_the_event_loop(tmp_path):
    waiting = []

    async def gathers(asked, conversation, reviewer):
        waiting.append(asked.id)
        await asyncio.sleep(0)
        sizes.append(len(waiting))
        return await draft_only(asked, conversation, reviewer)

    sizes: list[int] = []
    system = Talk().system("base", gathers)
    asyncio.run(evaluate([system], PROMPTS, PrefixJudge(), tmp_path, 3, lambda *_: None))
    assert sizes == [3, 3, 3, 5, 5]


class Dice:
    """A policy that says its seed."""

    def __init__(self):
        self.said = []

    async def reply(self, messages, sampling):
        self.said.append(f"I cannot say {sampling.seed}")
        return Reply(text=self.said[-1])


class AlwaysUnsafe:
    """A reviewer that asks for another reply to everything."""

    async def review(self, prompt, reply):
        return Feedback(unsafe=True, overrefuse=False, text="Again.")


def sampled(folder, samples, prompts=PROMPTS, pattern=draft_only):
    dice, wording = Dice(), load_wording("plain")
    sampling = Sampling(temperature=1.0)
    system = replace(
        Talk().system("base", pattern),
        conversation=ConversationAgent(dice, wording, sampling),
        samples=samples,
    )
    run = evaluate([system], prompts, PrefixJudge(), folder, 3, lambda *_: None)
    return asyncio.run(run), dice.said


def test_every_sample_has_its_number_and_random_numbers_of_its_own(tmp_path):
    rows, said = sampled(tmp_path, 4)
    assert [r.case for r in rows] == [(p.id, n) for p in PROMPTS for n in range(4)]
    assert len(set(said)) == len(said) == 20
    assert {r.case: r for r in read_rows(tmp_path)} == {r.case: r for r in rows}


@pytest.mark.promise(
    "Evaluation", "Sampled evaluations resume with the replies that they would have sampled"
)
def test_samples_are_resumed_and_extended_with_the_same_numbers(tmp_path):
    whole, _ = sampled(tmp_path / "whole", 4)
    sampled(tmp_path / "cut", 2)
    log = tmp_path / "cut" / "rows.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    rows, said = sampled(tmp_path / "cut", 4)
    assert without_time(rows) == without_time(whole)
    assert len(said) == 20 - 9  # two samples of five prompts less the torn row


def test_a_reviser_that_samples_revises_with_random_numbers_of_its_own(tmp_path):
    drafter, reviser = Dice(), Dice()
    sampling = Sampling(temperature=1.0)
    agent = ConversationAgent(drafter, load_wording("plain"), sampling, reviser=reviser)
    talk = Talk().system("loop", collaborate)
    system = replace(talk, conversation=agent, reviewer=AlwaysUnsafe())
    run = evaluate([system], PROMPTS, PrefixJudge(), tmp_path, 3, lambda *_: None)
    rows = asyncio.run(run)
    said = [row.judged.collaboration for row in rows]
    assert sorted(one.draft.text for one in said) == sorted(drafter.said)
    assert sorted(one.final.text for one in said) == sorted(reviser.said)
    assert len(set(reviser.said)) == 5


def test_the_drafts_of_one_sample_differ(tmp_path):
    _, said = sampled(tmp_path, 1, PROMPTS[:1], best_of_3)
    assert len(set(said)) == 3


class ModelJudge(PrefixJudge):
    """A judge whose model has a revision, and is down for some prompts."""

    def __init__(self, revision="r1", down=()):
        self.revision, self.down = revision, set(down)

    async def judge(self, prompt, reply):
        if prompt.id in self.down:
            raise PolicyError("judges:8000: HTTP 503:\nno model", reason="HTTP 503")
        verdict = await super().judge(prompt, reply)
        return replace(verdict, answers=(JudgeAnswer(text="yes", revision=self.revision),))


@pytest.mark.promise(
    "Evaluation", "What a judge could not judge is kept, and only judged by the next run"
)
@pytest.mark.promise(
    "Bad input",
    "A judge's server that is down or too slow: the judge, and how many rows await a verdict; "
    "nothing is generated again",
)
def test_what_a_judge_could_not_judge_is_kept_and_not_generated_again(tmp_path):
    rows = play(Talk(), tmp_path, judge=ModelJudge(down=["b1", "b3"]))
    failed = [r for r in rows if r.error]
    assert [r.prompt_id for r in failed] == ["b1", "b3"] * 2
    assert {r.error for r in failed} == {
        f"the judge {ModelJudge.name} failed: judges:8000: HTTP 503: no model"
    }
    assert all(r.judged is None and r.unjudged is not None for r in failed)
    idle = Talk()
    assert without_time(play(idle, tmp_path, judge=ModelJudge())) == without_time(
        play(Talk(), tmp_path / "whole", judge=ModelJudge())
    )
    assert idle.drafts == 0
    assert all(r.unjudged is None for r in read_rows(tmp_path))


@pytest.mark.promise(
    "Evaluation", "What a judge could not judge is kept, and only judged by the next run"
)
def test_rescoring_judges_what_was_left_unjudged(tmp_path):
    play(Talk(), tmp_path, judge=ModelJudge(down=["b1"]))
    rescored = asyncio.run(rescore(tmp_path, PrefixJudge(), tmp_path / "new", 3))
    whole = play(Talk(), tmp_path / "whole")
    in_order = sorted(rescored, key=lambda r: r.key)
    assert without_time(in_order) == without_time(sorted(whole, key=lambda r: r.key))


def test_unjudged_rows_by_other_agents_are_refused_too(tmp_path):
    play(Talk(), tmp_path, judge=ModelJudge(down=[p.id for p in PROMPTS]))
    systems = [replace(Talk().system("base", draft_only), agents="others")]
    with pytest.raises(InputError, match="by unknown agents, this run has others"):
        asyncio.run(evaluate(systems, PROMPTS, ModelJudge(), tmp_path, 3, lambda *_: None))


@pytest.mark.promise("Evaluation", "Verdicts of two revisions of a model do not mix")
@pytest.mark.promise(
    "Bad input",
    "A judge's model that changes its revision, in a run or between two: both revisions; the rows "
    "before are kept",
)
def test_a_log_is_judged_by_one_revision(tmp_path):
    play(Talk(), tmp_path, PROMPTS[:2], ModelJudge("r1"))
    rows = play(Talk(), tmp_path, judge=ModelJudge("r2"))
    assert [bool(r.error) for r in rows] == [False, False, True, True, True] * 2
    assert {r.error for r in rows if r.error} == {
        "the judge's model is of revision 'r2', and of 'r1' in the rows before; serve that revision"
        " again, or rescore the folder"
    }
    idle = Talk()
    assert not any(r.error for r in play(idle, tmp_path, judge=ModelJudge("r1")))
    assert idle.drafts == 0


@pytest.mark.promise(
    "Evaluation",
    "A guard by server or in this process gives the probabilities of its labels, tokens and "
    "revision, and the log keeps them",
)
def test_answers_of_the_judges_model_stand_in_the_log(tmp_path):
    play(Talk(), tmp_path, judge=ModelJudge("r1"))
    line = json.loads((tmp_path / "rows.jsonl").read_text("utf-8").splitlines()[0])
    assert line["judged"]["verdicts"][0]["answers"] == [
        {"text": "yes", "probabilities": {}, "revision": "r1", "usage": None}
    ]


def rambling_judge():
    policy = ScriptedPolicy(lambda _messages: "Hm.")
    return LLMJudge(FORMATS["wildguard"], JudgeModel(policy, "m", "m"))


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
def test_a_judge_that_decides_nothing_ends_in_one_line_and_the_replies_are_kept(tmp_path):
    complaint = r"wildguard:m@\w+ decided on none of 15 replies, .* 'Hm\.'; is it another model"
    with pytest.raises(InputError, match=complaint):
        play(Talk(), tmp_path, judge=rambling_judge())
    assert len(read_rows(tmp_path)) == 10
    before = (tmp_path / "rows.jsonl").read_bytes()
    with pytest.raises(InputError, match=complaint):
        asyncio.run(rescore(tmp_path, rambling_judge(), tmp_path, 3))
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    rescored = asyncio.run(rescore(tmp_path, PrefixJudge(), tmp_path, 3))
    assert {verdict.unsafe for r in rescored for verdict in r.judged.verdicts} == {False}


@pytest.mark.promise("Evaluation", "Two evaluations in one folder at once are refused")
@pytest.mark.promise(
    "Bad input",
    "A run directory, a study or the folder of an evaluation that another process uses: the "
    "process",
)
def test_two_evaluations_in_one_folder_are_refused_in_one_line(tmp_path):
    play(Talk(), tmp_path, PROMPTS[:2])
    before = (tmp_path / "rows.jsonl").read_bytes()
    with RunDirectory(tmp_path):
        with pytest.raises(InputError, match=f"{tmp_path} is in use by process {os.getpid()}"):
            play(Talk(), tmp_path)
        with pytest.raises(InputError, match="is in use by process"):
            asyncio.run(rescore(tmp_path, LenientJudge(), tmp_path, 3))
    assert (tmp_path / "rows.jsonl").read_bytes() == before
    assert len(play(Talk(), tmp_path)) == 10
