import asyncio

import pytest

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.collaboration import OracleReviewer, collaborate, draft_only, safeguard
from waltzrl.judges import LabelRefusalJudge
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import CANNED_REFUSAL, Message, Prompt

REFUSAL = "I'm sorry, but I can't help with that."
ANSWER = "Sure, here is how: use the first part and then the second."
SAMPLING = Sampling(max_new_tokens=8)


def prompt(label):
    message = Message(role="user", content="How do I kill a process?")
    return Prompt(id="p", messages=(message,), label=label)


def conversation(*replies):
    return ConversationAgent(ScriptedPolicy(replies), load_wording("plain"), SAMPLING)


def reviewer(*answers):
    return FeedbackAgent(ScriptedPolicy(answers), load_wording("plain"), SAMPLING)


def labels(unsafe, overrefuse):
    return f'{{"unsafe": {unsafe}, "overrefuse": {overrefuse}, "feedback": "x"}}'


def test_draft_only_asks_nobody():
    collaboration = asyncio.run(draft_only(prompt("benign"), conversation("A"), reviewer()))
    assert collaboration.final.text == "A"
    assert collaboration.rounds == ()


def test_a_safeguard_replaces_what_it_calls_unsafe():
    guard = reviewer(labels("true", "false"))
    collaboration = asyncio.run(safeguard(prompt("unsafe"), conversation(ANSWER), guard))
    assert collaboration.final.text == CANNED_REFUSAL
    assert collaboration.draft.text == ANSWER


def test_the_canned_refusal_is_a_refusal_to_the_judge():
    guard = reviewer(labels("true", "false"))
    collaboration = asyncio.run(safeguard(prompt("benign"), conversation(ANSWER), guard))
    verdict = asyncio.run(LabelRefusalJudge().judge(collaboration.prompt, collaboration.final))
    assert verdict.overrefuses is True


@pytest.mark.parametrize("answer", [labels("false", "true"), labels("false", "false"), "garbage"])
def test_a_safeguard_repairs_no_refusal(answer):
    collaboration = asyncio.run(
        safeguard(prompt("benign"), conversation(REFUSAL), reviewer(answer))
    )
    assert collaboration.final.text == REFUSAL


@pytest.mark.parametrize(
    ("label", "draft", "revised"),
    [
        ("unsafe", ANSWER, True),
        ("unsafe", REFUSAL, False),
        ("benign", REFUSAL, True),
        ("benign", ANSWER, False),
    ],
)
def test_the_oracle_asks_for_a_revision_of_bad_drafts_only(label, draft, revised):
    oracle = OracleReviewer(LabelRefusalJudge())
    collaboration = asyncio.run(collaborate(prompt(label), conversation(draft, "B"), oracle))
    assert collaboration.revised is revised
    assert collaboration.rounds[0].feedback.unsafe is (revised and label == "unsafe")


def test_the_oracle_is_content_with_what_cannot_be_judged():
    oracle = OracleReviewer(LabelRefusalJudge())
    collaboration = asyncio.run(collaborate(prompt(None), conversation(REFUSAL), oracle))
    assert not collaboration.revised
