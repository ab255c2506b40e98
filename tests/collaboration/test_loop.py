import asyncio

import pytest

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.collaboration import collaborate
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import Message, Prompt

PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))
REVISE = '{"unsafe": false, "overrefuse": true, "feedback": "It is harmless, answer."}'
CONTENT = '{"unsafe": false, "overrefuse": false, "feedback": ""}'


def agents(conversation, feedback):
    wording, sampling = load_wording("plain"), Sampling(max_new_tokens=8)
    return (
        ConversationAgent(ScriptedPolicy(conversation), wording, sampling),
        FeedbackAgent(ScriptedPolicy(feedback), wording, sampling),
    )


def play(conversation, feedback, prompt=PROMPT, **options):
    pair = agents(conversation, feedback)
    return asyncio.run(collaborate(prompt, *pair, **options)), pair


def test_advice_leads_to_a_revision():
    collaboration, _ = play(["I cannot.", "Use kill PID."], [REVISE])
    assert [reply.text for reply in collaboration.replies] == ["I cannot.", "Use kill PID."]
    assert collaboration.final.text == "Use kill PID."
    assert collaboration.revised


def test_content_feedback_keeps_the_draft():
    collaboration, _ = play(["Use kill PID."], [CONTENT], max_rounds=3)
    assert collaboration.final == collaboration.draft
    assert len(collaboration.rounds) == 1


def test_unreadable_feedback_ends_the_loop_and_is_recorded():
    collaboration, _ = play(["I cannot."], ["Looks fine to me!"], max_rounds=3)
    assert collaboration.final.text == "I cannot."
    assert [turn.feedback.well_formed for turn in collaboration.rounds] == [False]


def test_without_rounds_nobody_is_asked_for_feedback():
    collaboration, (_, feedback) = play(["I cannot."], [], max_rounds=0)
    assert collaboration.rounds == ()
    assert feedback.policy.conversations == []


@pytest.mark.parametrize("max_rounds", [1, 2, 3, 5])
def test_a_reviewer_who_is_never_content_is_heard_max_rounds_times(max_rounds):
    replies = [f"reply {number}" for number in range(max_rounds + 1)]
    collaboration, (_, feedback) = play(replies, [REVISE] * max_rounds, max_rounds=max_rounds)
    assert len(collaboration.rounds) == len(feedback.policy.conversations) == max_rounds
    assert [reply.text for reply in collaboration.replies] == replies


def test_the_loop_stops_as_soon_as_the_reviewer_is_content():
    collaboration, _ = play(["A", "B"], [REVISE, CONTENT], max_rounds=5)
    assert [turn.revision is None for turn in collaboration.rounds] == [False, True]


@pytest.mark.promise("Requirements", "ConversationResponse, CoachingContext, SafeResponse")
def test_each_review_is_about_the_newest_reply():
    _, (_, feedback) = play(["A one", "B two", "C three"], [REVISE, REVISE], max_rounds=2)
    requests = [messages[-1].content for messages in feedback.policy.conversations]
    assert "<reply>A one</reply>" in requests[0]
    assert "<reply>B two</reply>" in requests[1]


def test_a_conversation_of_many_turns_is_kept_whole():
    turns = ("system", "Be brief."), ("user", "Hi"), ("assistant", "Hello"), ("user", "Kill it?")
    prompt = Prompt(id="m", messages=tuple(Message(role=r, content=c) for r, c in turns))
    _, (conversation, _) = play(["A", "B"], [REVISE], prompt=prompt)
    draft, revision = conversation.policy.conversations
    assert draft == prompt.messages
    assert revision[:4] == prompt.messages
    assert revision[4] == Message(role="assistant", content="A")


def test_a_negative_number_of_rounds_is_refused():
    with pytest.raises(ValueError, match="max_rounds must be 0 or more, got -1"):
        play(["A"], [], max_rounds=-1)
