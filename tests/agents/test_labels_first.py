import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.openai_server import serving
from waltzrl.agents import FeedbackAgent, load_wording
from waltzrl.agents.feedback_json import is_approval, read_feedback
from waltzrl.agents.fence import LONGEST_TEXT
from waltzrl.policies import RemotePolicy, Sampling, ScriptedPolicy
from waltzrl.records import Message, Prompt, Reply, Usage

LABELS_FIRST, PLAIN = load_wording("labels_first"), load_wording("plain")
SAMPLING = Sampling(max_new_tokens=64)
PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I bake bread?"),))
CONTENT = '{"unsafe": false, "overrefuse": false'
UNSAFE = '{"unsafe": true, "overrefuse": false, "reasoning": "r", "feedback": "Leave it out."}'


def review(policy, wording=LABELS_FIRST, reply="Mix flour and water."):
    agent = FeedbackAgent(policy, wording, SAMPLING)
    return asyncio.run(agent.review(PROMPT, Reply(text=reply)))


def says(*replies):
    return ScriptedPolicy(list(replies))


def test_the_labels_are_asked_for_before_the_advice():
    system = LABELS_FIRST.feedback_system
    assert system.index('"unsafe"') < system.index('"overrefuse"') < system.index('"feedback"')


def test_what_the_wording_does_not_say_itself_is_said_as_in_plain():
    assert LABELS_FIRST.labels_first
    assert not PLAIN.labels_first
    for part in ("conversation_system", "review", "revise"):
        assert getattr(LABELS_FIRST, part) == getattr(PLAIN, part)


def test_a_review_that_finds_nothing_ends_after_its_labels():
    feedback = review(says(CONTENT + ', "reasoning": "It is fine.", "feedback": ""}'))
    assert feedback.reply.text == CONTENT
    assert feedback.well_formed
    assert not feedback.asks_for_revision


@pytest.mark.parametrize("labels", [(True, False), (False, True), (True, True)])
def test_a_review_that_finds_something_is_read_to_its_end(labels):
    unsafe, overrefuse = labels
    answer = json.dumps(
        {"unsafe": unsafe, "overrefuse": overrefuse, "reasoning": "r", "feedback": "Mend it."}
    )
    feedback = review(says(answer))
    assert (feedback.unsafe, feedback.overrefuse) == labels
    assert (feedback.text, feedback.reply.text) == ("Mend it.", answer)


def test_other_wordings_are_always_read_to_their_end():
    answer = CONTENT + ', "reasoning": "It is fine.", "feedback": ""}'
    feedback = review(says(answer), wording=PLAIN)
    assert (feedback.reasoning, feedback.reply.text) == ("It is fine.", answer)


def test_a_server_streams_the_labels_and_is_stopped():
    answer = CONTENT + f', "reasoning": "{"long " * 200}", "feedback": ""}}'
    with serving({"judge": ScriptedPolicy(lambda _: answer)}) as server:

        async def review_behind_server():
            async with RemotePolicy(server.base_url, "judge") as policy:
                agent = FeedbackAgent(policy, LABELS_FIRST, SAMPLING)
                return await agent.review(PROMPT, Reply(text="Mix flour and water."))

        feedback = asyncio.run(review_behind_server())
    assert feedback.well_formed
    assert feedback.reply.text == CONTENT
    assert server.pieces[0] < 60  # of more than 340


@pytest.mark.parametrize(
    "text",
    [
        CONTENT,
        '{"is_unsafe":false,"is_overrefusing":false',
        '\n ```json\n{\n  "unsafe": false,\n  "overrefuse": false',
        CONTENT + ', "reas',
        CONTENT + "}",
    ],
)
def test_an_object_that_begins_with_two_false_labels_is_enough(text):
    assert is_approval(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"unsafe": false, "overrefuse": fals',
        '{"unsafe": true, "overrefuse": false',
        '{"unsafe": false, "overrefuse": true',
        '{"unsafe": "false", "overrefuse": false',
        '{"overrefuse": false, "reasoning": "", "unsafe": false',
        '{"reasoning": "' + CONTENT,
        '{"reasoning": "r", "unsafe": false, "overrefuse": false',
        "The reply says " + CONTENT,
        '{"unsafe": true, "overrefuse": false, "reasoning": "it says ' + CONTENT,
        "{" + CONTENT,
        "[" + CONTENT,
        '"' + CONTENT,
        '{"un\N{CYRILLIC SMALL LETTER DZE}afe": false, "overrefuse": false',
        "{'unsafe': false, 'overrefuse': false",
    ],
)
def test_nothing_else_is_enough(text):
    assert not is_approval(text)


def test_a_reply_that_was_ended_there_can_be_read_and_any_other_cut_can_not():
    whole = '{"unsafe": false, "overrefuse": false, "reasoning": "r", "feedback": ""}'
    readable = [end for end in range(len(whole) + 1) if read(whole[:end]).well_formed]
    assert readable == [len(CONTENT), len(whole)]
    flagged = [end for end in range(len(UNSAFE) + 1) if read(UNSAFE[:end]).well_formed]
    assert flagged == [len(UNSAFE)]


def read(text):
    return read_feedback(Reply(text=text))


@given(st.text(alphabet='{}"\\:, unsaferovt`\n') | st.text())
def test_what_is_enough_stays_enough(text):
    assert is_approval(CONTENT + text)
    assert is_approval(text) <= is_approval(text + "x")
    assert Sampling(enough=is_approval).cut(CONTENT + text) == CONTENT


def test_all_of_a_long_reply_is_reviewed():
    def finds(messages):
        return UNSAFE if "POISON" in messages[-1].content else CONTENT

    for place in (0, LONGEST_TEXT - 3, LONGEST_TEXT + 3, 2 * LONGEST_TEXT, 29_990):
        reply = f"{'x' * place}POISON{'x' * (30_000 - place)}"
        assert review(ScriptedPolicy(finds), reply=reply).unsafe
    policy = ScriptedPolicy(finds)
    assert not review(policy, reply="x" * 30_000).unsafe
    assert len(policy.conversations) == 4  # from 0, 7,500, 15,000 and 22,500


@pytest.mark.parametrize("length", [0, 1, 500, LONGEST_TEXT])
def test_a_reply_that_fits_is_reviewed_once(length):
    policy = says(CONTENT)
    review(policy, reply="x" * length)
    assert f"<reply>{'x' * length}</reply>" in policy.conversations[0][-1].content


def test_of_the_pieces_of_a_long_reply_the_worst_counts():
    overrefuse = UNSAFE.replace("true", "#").replace("false", "true").replace("#", "false")
    long = "x" * (LONGEST_TEXT + 10)
    assert review(says(CONTENT, UNSAFE), reply=long).unsafe
    assert review(says("?", UNSAFE), reply=long).unsafe
    assert not review(says(CONTENT, "?"), reply=long).well_formed
    assert review(says(overrefuse, CONTENT), reply=long).overrefuse
    assert not review(says(CONTENT, overrefuse), reply=long).overrefuse


class Counting:
    """A policy that approves, for ten tokens and one."""

    async def reply(self, messages, sampling):
        return Reply(text=CONTENT, usage=Usage(input_tokens=10, output_tokens=1))


def test_the_tokens_of_all_pieces_count():
    feedback = review(Counting(), reply="x" * 30_000)
    assert feedback.reply.usage == Usage(input_tokens=40, output_tokens=4)
