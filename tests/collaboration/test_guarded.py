import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.collaboration import collaborate, guarded, observed
from waltzrl.policies import Sampling, ScriptedPolicy
from waltzrl.records import CANNED_REFUSAL, Feedback, Message, Prompt

PROMPT = Prompt(id="p", messages=(Message(role="user", content="How do I kill a process?"),))
UNSAFE = '{"unsafe": true, "overrefuse": false, "feedback": "Leave it out."}'
OVERREFUSING = '{"unsafe": false, "overrefuse": true, "feedback": "Answer it."}'
CONTENT = '{"unsafe": false, "overrefuse": false, "feedback": ""}'
GARBAGE = "Looks fine to me!"


def play(pattern, drafts, reviews, **options):
    wording, sampling = load_wording("plain"), Sampling(max_new_tokens=8)
    conversation = ConversationAgent(ScriptedPolicy(drafts), wording, sampling)
    reviewer = FeedbackAgent(ScriptedPolicy(reviews), wording, sampling)
    collaboration = asyncio.run(pattern(PROMPT, conversation, reviewer, **options))
    return collaboration, len(reviewer.policy.conversations)


def texts(collaboration):
    return [reply.text for reply in collaboration.replies]


def test_a_draft_that_the_reviewer_likes_leaves_after_one_review():
    collaboration, reviews = play(guarded, ["A"], [CONTENT])
    assert texts(collaboration) == ["A"]
    assert reviews == 1


def test_a_revision_is_reviewed_again_before_it_leaves():
    collaboration, reviews = play(guarded, ["A", "B"], [UNSAFE, CONTENT])
    assert texts(collaboration) == ["A", "B"]
    assert reviews == 2
    assert [turn.feedback.unsafe for turn in collaboration.rounds] == [True, False]


def test_a_revision_that_is_still_unsafe_is_declined():
    collaboration, reviews = play(guarded, ["A", "B"], [UNSAFE, UNSAFE])
    assert texts(collaboration) == ["A", "B", CANNED_REFUSAL]
    assert reviews == 2


def test_without_rounds_an_unsafe_draft_is_declined_at_once():
    assert texts(play(guarded, ["A"], [UNSAFE], max_rounds=0)[0]) == ["A", CANNED_REFUSAL]
    assert texts(play(guarded, ["I cannot."], [OVERREFUSING], max_rounds=0)[0]) == ["I cannot."]


def test_an_over_refusal_that_stays_one_leaves_as_it_is():
    collaboration, _ = play(guarded, ["I cannot.", "I will not."], [OVERREFUSING, OVERREFUSING])
    assert texts(collaboration) == ["I cannot.", "I will not."]


@pytest.mark.promise("Do no harm", "An unsafe draft that became a refusal is not revised again")
@pytest.mark.parametrize("max_rounds", [1, 2, 3])
def test_an_unsafe_draft_that_became_a_refusal_is_left_alone(max_rounds):
    drafts, reviews = ["A method.", "I cannot."], [UNSAFE, OVERREFUSING]
    collaboration, asked = play(guarded, drafts, reviews, max_rounds=max_rounds)
    assert texts(collaboration) == drafts
    assert collaboration.decision == "revised"
    assert asked == 2


class InTurn:
    """A reviewer that says one thing after the other."""

    def __init__(self, *said):
        self.said = list(said)

    async def review(self, prompt, reply):
        return self.said.pop(0)


SAFE = Feedback(unsafe=False, overrefuse=False)
DOUBTFUL = Feedback(unsafe=False, overrefuse=False, doubtful=True, text="Leave it out.")
BAD = Feedback(unsafe=True, overrefuse=False, text="Leave it out.")
CHALLENGED = Feedback(unsafe=False, overrefuse=True, text="Answer it.")


@pytest.mark.parametrize(
    ("said", "returned"),
    [
        ([DOUBTFUL, SAFE], ["A", "B"]),
        ([DOUBTFUL, DOUBTFUL], ["A", "B"]),  # only a draft is revised for a doubt
        ([DOUBTFUL, BAD], ["A", "B", "C", CANNED_REFUSAL]),
        ([BAD, DOUBTFUL], ["A", "B"]),
        ([DOUBTFUL, CHALLENGED, SAFE], ["A", "B", "C"]),  # nothing was called unsafe
    ],
)
def test_a_doubtful_draft_is_revised_once_and_a_doubtful_revision_is_returned(said, returned):
    conversation = ConversationAgent(
        ScriptedPolicy(list("ABC")), load_wording("plain"), Sampling(max_new_tokens=8)
    )
    reviewer = InTurn(*said, *[BAD] * (len(returned) - 2))
    collaboration = asyncio.run(guarded(PROMPT, conversation, reviewer, max_rounds=2))
    assert texts(collaboration) == returned


def test_a_doubtful_draft_that_may_not_be_revised_is_returned():
    conversation = ConversationAgent(
        ScriptedPolicy(["A"]), load_wording("plain"), Sampling(max_new_tokens=8)
    )
    collaboration = asyncio.run(guarded(PROMPT, conversation, InTurn(DOUBTFUL), max_rounds=0))
    assert (texts(collaboration), collaboration.decision) == (["A"], "draft")


def test_what_nobody_could_review_is_declined():
    collaboration, _ = play(guarded, ["A"], [GARBAGE])
    assert texts(collaboration) == ["A", CANNED_REFUSAL]
    assert collaboration.rounds[-1].feedback.well_formed is False


def test_a_revision_that_nobody_could_review_is_declined():
    collaboration, _ = play(guarded, ["A", "B"], [OVERREFUSING, GARBAGE])
    assert collaboration.final.text == CANNED_REFUSAL


def test_failing_open_lets_unreviewed_replies_leave_but_no_unsafe_ones():
    open_, _ = play(guarded, ["A"], [GARBAGE], fail_open=True)
    assert texts(open_) == ["A"]
    unsafe, _ = play(guarded, ["A", "B"], [UNSAFE, UNSAFE], fail_open=True)
    assert unsafe.final.text == CANNED_REFUSAL


def test_where_nothing_is_declined_it_is_the_loop_and_one_review_more():
    ours, reviews = play(guarded, ["A", "B"], [OVERREFUSING, CONTENT])
    paper, papers_reviews = play(collaborate, ["A", "B"], [OVERREFUSING])
    assert ours.replies == paper.replies
    assert reviews == papers_reviews + 1


@given(
    reviews=st.lists(
        st.sampled_from([UNSAFE, OVERREFUSING, CONTENT, GARBAGE]), min_size=5, max_size=5
    ),
    max_rounds=st.integers(1, 4),
)
def test_nothing_leaves_whose_last_review_was_bad_or_missing(reviews, max_rounds):
    collaboration, _ = play(guarded, list("ABCDE"), reviews, max_rounds=max_rounds)
    *earlier, last_round = collaboration.rounds
    last = last_round.feedback
    if last.unsafe or not last.well_formed:
        assert collaboration.final.text == CANNED_REFUSAL
    else:
        assert collaboration.final.text in list("ABCDE")
    assert all(turn.revision is not None for turn in earlier)
    after_unsafe = False
    for turn in earlier:  # no refusal is challenged once a reply was called unsafe
        assert turn.feedback.unsafe or not after_unsafe
        after_unsafe = after_unsafe or turn.feedback.unsafe


@pytest.mark.parametrize("review", [UNSAFE, OVERREFUSING, CONTENT, GARBAGE])
def test_an_observer_changes_nothing_and_is_on_record(review):
    collaboration, reviews = play(observed, ["A"], [review])
    assert texts(collaboration) == ["A"]
    assert reviews == 1
    assert collaboration.rounds[0].feedback.unsafe is (review == UNSAFE)
