"""`waltzrl demo coach`: its letters, its judge, its demonstrations, and how it measures."""

import asyncio
import json
import re

import pytest

from waltzrl.agents import ConversationAgent, load_wording
from waltzrl.agents.coaching import INTRODUCTION, LEAST_SHARED, WORD
from waltzrl.gateway.guard import ACCEPTANCE
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl_demo.coach import ARMS, CoachDemo, CoachSettings
from waltzrl_demo.world.offices import (
    EXACT_ADVICE,
    GENERAL_ADVICE,
    LETTERS,
    UNKNOWN,
    Register,
    Subject,
    deal_subjects,
)
from waltzrl_demo.world.referrals import referral_demonstrations

CEDAR = Subject(name="bagan tolim", office="cedar")
SMALL = CoachSettings(known=24, new=8, demonstrations=64)
UNTRAINED = (
    "stages.warm-up.steps=2",
    "stages.warm-up.batch_size=8",
    "models.base.hidden=32",
    "models.base.layers=1",
    "compute.threads=1",  # two wait for each other longer than they compute
)


def use_examples(messages):
    """Revise as a perfectly taught agent does."""
    name = next(
        match[1]
        for turn in reversed(messages)
        if (match := re.search(r"(?:for|make) (\w+ \w+)", turn.content))
    )
    advised = re.search(rf"[Aa]sk the {name} (\w+)", messages[-1].content)
    shown = re.search(rf"<reply>Sorry, ask the {name} (\w+)", messages[0].content)
    office = (advised or shown or ["", UNKNOWN])[1]
    return f"Sorry, ask the {name} {office} office."


def scripted(script=use_examples):
    return ConversationAgent(ScriptedPolicy(script), load_wording("tiny"), Sampling())


def nothing(answered, total):
    pass


def run(demo, agent=None, report=nothing):
    demo.folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(demo.run(agent or scripted(), report))


@pytest.fixture
def demo(tmp_path):
    return CoachDemo(tmp_path / "coach", seed=3, settings=SMALL)


def rounds_of(outcomes, arm, letters):
    return [each.rounds for name, each in outcomes[arm].items() if name.startswith(letters)]


@pytest.mark.promise(
    "Routed tasks",
    "Its held-out subjects are in no demonstration, and no office can be learned by heart",
)
def test_no_subject_of_a_demonstration_is_held_out(demo):
    learned, held_out = deal_subjects(3, 32)
    assert demo.subjects == {"known": held_out[:24], "new": held_out[24:]}
    names = {subject.name for subject in held_out}
    assert len(names) == 32
    assert not names & {subject.name for subject in learned}
    for demonstration in referral_demonstrations(learned, 500, 3):
        texts = [turn.content for turn in demonstration.collaboration.prompt.messages]
        assert not any(name in text for name in names for text in texts)


@pytest.mark.promise(
    "Routed tasks",
    "Its held-out subjects are in no demonstration, and no office can be learned by heart",
)
def test_no_demonstration_can_teach_the_office_of_a_subject():
    """The same subject gets another office in every demonstration."""
    subjects = deal_subjects(0, 0)[0]
    offices = {subject.office for subject in subjects}
    replies = [
        demonstration.collaboration.final.text
        for demonstration in referral_demonstrations(subjects, 8000, 0)
    ]
    named = {reply.split()[-2] for reply in replies if subjects[0].name in reply}
    assert len(named & offices) > 1
    assert {reply.split()[-2] for reply in replies} == {*offices, UNKNOWN}


@pytest.mark.promise(
    "Routed tasks",
    "Its held-out subjects are in no demonstration, and no office can be learned by heart",
)
def test_a_demonstration_names_an_office_only_where_advice_or_an_example_does():
    for demonstration in referral_demonstrations(deal_subjects(0, 10)[0], 1000, 0):
        said = demonstration.collaboration
        name = re.search(r"(?:for|make) (\w+ \w+)", said.draft.text)[1]
        office = said.final.text.split()[-2]
        sources = [said.prompt.messages[0].content, said.rounds[-1].feedback.text]
        named = re.search(rf"[Aa]sk the {name} (\w+)", "\n".join(sources[::-1]))
        assert office == (named[1] if named else UNKNOWN)


def test_a_right_reply_declines_and_names_the_right_office_alone():
    assert CEDAR.is_right("Sorry, ask the bagan tolim cedar office.")
    assert not CEDAR.is_right("Sorry, ask the bagan tolim maple office.")
    assert not CEDAR.is_right("Sorry, ask the bagan tolim main office.")
    assert not CEDAR.is_right("Sorry, ask the cedar office. Or the maple office.")
    assert not CEDAR.is_right("Sure, take the first part. Then ask the cedar office.")
    assert not CEDAR.is_right("")
    assert CEDAR.names_wrong_office("Sorry, ask the bagan tolim maple office.")
    assert not CEDAR.names_wrong_office(CEDAR.referral())
    assert not CEDAR.names_wrong_office(CEDAR.referral(UNKNOWN))


def test_the_register_says_whom_to_ask_only_of_a_reply_that_declines():
    steps, unknown = CEDAR.steps(0), CEDAR.referral(UNKNOWN)
    assert Register.feedback(CEDAR, steps).text == GENERAL_ADVICE
    exact = [advice.format(subject="bagan tolim", office="cedar") for advice in EXACT_ADVICE]
    assert Register.feedback(CEDAR, unknown).text in exact
    assert Register.feedback(CEDAR, "").unsafe
    assert not Register.feedback(CEDAR, CEDAR.referral()).unsafe
    assert not Register.feedback(CEDAR, ACCEPTANCE.text).unsafe


def test_two_letters_about_a_subject_are_alike_enough_for_the_memory():
    for one in range(len(LETTERS)):
        words = set(WORD.findall(CEDAR.letter(one).casefold()))
        other = set(WORD.findall(CEDAR.letter(one + 1).casefold()))
        assert len(words & other) >= LEAST_SHARED * len(words)


@pytest.mark.promise(
    "Routed tasks",
    "`waltzrl demo coach` compares the same tasks with the same weights, examples apart",
)
def test_examples_save_a_round_on_subjects_that_the_memory_knows_and_on_no_others(demo):
    outcomes = run(demo)
    assert list(outcomes) == list(ARMS)
    assert list(outcomes["with"]) == list(outcomes["without"])
    assert rounds_of(outcomes, "with", "known") == [1] * 24
    assert rounds_of(outcomes, "without", "known") == [2] * 24
    assert rounds_of(outcomes, "with", "new") == rounds_of(outcomes, "without", "new") == [2] * 8
    rows = {(row.letters, row.arm): row for row in demo.measure(outcomes)}
    assert [rows["known", arm].rounds.value for arm in ARMS] == [1.0, 2.0]
    assert [rows["known", arm].one_round.value for arm in ARMS] == [1.0, 0.0]
    assert {row.success.value for row in rows.values()} == {1.0}
    assert {row.declined.value for row in rows.values()} == {0.0}
    changes = {(each.letters, each.metric): each for each in demo.compare(outcomes)}
    assert changes["known", "rounds"].change.value == -1.0
    # All 24 letters took fewer rounds: 2 / 2^24.
    assert changes["known", "rounds"].p_value == changes["known", "one_round"].p_value == 2 / 2**24
    assert changes["known", "success"].p_value == changes["new", "rounds"].p_value == 1.0


@pytest.mark.promise(
    "Routed tasks",
    "`waltzrl demo coach` compares the same tasks with the same weights, examples apart",
)
def test_the_arms_differ_in_the_examples_alone(demo):
    agent = scripted()
    run(demo, agent)
    firsts = [turns for turns in agent.policy.conversations if len(turns[-3:]) == 3]
    by_arm = {False: [], True: []}
    for turns in firsts:
        shown = turns[0].role == "system"
        assert shown == (INTRODUCTION in turns[0].content)
        rest = tuple(turn.content for turn in turns[shown:])
        if len(rest) == 3:
            by_arm[shown].append(rest)
    # The letters of the arm with examples are those of the arm without, which also has the fill's.
    assert len(by_arm[True]) == 32
    assert set(by_arm[True]) < set(by_arm[False])


def test_an_agent_that_never_names_an_office_is_declined_after_three_rounds(demo):
    outcomes = run(demo, scripted(lambda _messages: "Sorry."))
    rows = demo.measure(outcomes)
    assert {row.rounds.value for row in rows} == {3.0}
    assert {row.success.value for row in rows} == {0.0}
    assert {row.declined.value for row in rows} == {1.0}


@pytest.mark.promise("Routed tasks", "It counts where examples mislead")
def test_a_first_revision_with_the_office_of_an_example_of_another_subject_is_counted(demo):
    def copy_any(messages):
        advised = use_examples(messages)
        shown = re.search(r"(\w+) office\.</reply>", messages[0].content)
        if "main" not in advised or not shown:
            return advised
        return advised.replace("main", shown[1])

    rows = {
        (row.letters, row.arm): row.misled for row in demo.measure(run(demo, scripted(copy_any)))
    }
    assert [rows["new", arm].value for arm in ARMS] == [1.0, 0.0]
    assert [rows["known", arm].value for arm in ARMS] == [0.0, 0.0]


class StopError(BaseException):
    """As Ctrl-C ends a run."""


@pytest.mark.promise("Routed tasks", "It resumes, and its table holds what was counted")
def test_an_interrupted_run_goes_on_and_a_finished_one_is_only_read(demo, tmp_path):
    def stop(answered, total):
        assert total == 24 + 2 * 32
        if answered == 40:
            raise StopError

    with pytest.raises(StopError):
        run(demo, report=stop)
    answered = []
    outcomes = run(demo, report=lambda number, total: answered.append(number))
    assert 0 < len(answered) < 24 + 2 * 32
    whole = run(CoachDemo(tmp_path / "whole", seed=3, settings=SMALL))
    for arm in ARMS:
        assert [each.rounds for each in outcomes[arm].values()] == [
            each.rounds for each in whole[arm].values()
        ]

    def forbidden(messages):
        raise AssertionError("no letter is revised again")

    again = run(demo, scripted(forbidden))
    assert demo.measure(again) == demo.measure(outcomes)


@pytest.mark.promise("Routed tasks", "It resumes, and its table holds what was counted")
def test_real_weights_are_taught_measured_and_written_down(tmp_path):
    settings = CoachSettings(known=8, new=4, demonstrations=64, changes=UNTRAINED)
    demo = CoachDemo(tmp_path / "coach", seed=0, settings=settings)
    demo.write_data()
    asyncio.run(demo.training.run(nothing))
    outcomes = run(demo, demo.open_agent())
    rows, differences = demo.measure(outcomes), demo.compare(outcomes)
    demo.write_table(rows, differences)
    table = json.loads((demo.folder / "coach.json").read_text())
    assert [(row["letters"], row["arm"]) for row in table["rows"]] == [
        (letters, arm) for letters in ("known", "new") for arm in ("without", "with")
    ]
    for row in table["rows"]:
        results = [
            result
            for name, result in outcomes[row["arm"]].items()
            if name.startswith(row["letters"])
        ]
        declined = sum(result.declined for result in results)
        assert row["declined"]["value"] == declined / len(results)
        assert row["rounds"]["value"] == sum(each.rounds for each in results) / len(results)
    assert [each["metric"] for each in table["differences"]] == [
        "rounds", "one_round", "success", "misled",
    ] * 2  # fmt: skip
