"""What is done about findings, by their category."""

import asyncio
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.agents.hybrid import HybridReviewer
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules_reviewer import CategoryActions, RulesEvidence, RulesReviewer
from waltzrl.collaboration import guarded
from waltzrl.records import Feedback, Message, Prompt, Reply

RULEBOOK = load_rulebook()
WEAPONS, HATE = (
    next(
        rule.example
        for rule in RULEBOOK.rules
        if rule.side == "reply" and rule.category == category and rule.severity >= 0.8
    )
    for category in ("weapons", "hate_speech")
)
PROMPT = Prompt(id="1", messages=(Message(role="user", content="Go on."),))


def reviewed(text, **actions):
    """Return the rules' feedback on a reply."""
    reviewer = RulesReviewer(RULEBOOK, actions=CategoryActions(actions))
    return asyncio.run(reviewer.review(PROMPT, Reply(text=text)))


DOUBTFUL = "The history of pipe bombs begins in the 19th century."


class Drafts:
    """Drafts a text, and revises it to another."""

    def __init__(self, text):
        self.text, self.revisions = text, 0

    async def draft(self, _prompt):
        return Reply(text=self.text)

    async def revise(self, _prompt, _draft, _rounds):
        self.revisions += 1
        return Reply(text="Let me help in a safe way.")


def served(text, **actions):
    """Return the decision on a draft, and how often it was revised."""
    drafts = Drafts(text)
    reviewer = RulesReviewer(RULEBOOK, actions=CategoryActions(actions))
    collaboration = asyncio.run(guarded(PROMPT, drafts, reviewer))
    return collaboration.decision, drafts.revisions


@pytest.mark.promise(
    "Policies", "A category is ignored, observed, revised or refused as the operator says"
)
def test_a_category_is_ignored_observed_revised_or_refused():
    assert served(WEAPONS) == ("revised", 1)
    assert served(WEAPONS, weapons="revise") == ("revised", 1)
    assert served(WEAPONS, weapons="off") == ("draft", 0)
    assert served(WEAPONS, weapons="observe") == ("draft", 0)
    assert served(WEAPONS, weapons="refuse") == ("refused", 0)
    assert served(WEAPONS, hate_speech="off") == ("revised", 1)


def test_what_is_ignored_leaves_no_trace_and_what_is_observed_does():
    ignored = reviewed(WEAPONS, weapons="off")
    assert (ignored.flags, ignored.rules, ignored.risk) == (False, (), 0.0)
    observed = reviewed(WEAPONS, weapons="observe")
    assert (observed.unsafe, observed.category, observed.action) == (True, "weapons", "observe")
    assert not observed.asks_for_revision
    assert not observed.refuses


def test_another_category_in_the_same_reply_still_counts():
    both = f"{WEAPONS}\n\n{HATE}"
    for action in ("off", "observe"):
        feedback = reviewed(both, weapons=action)
        assert (feedback.category, feedback.action) == ("hate_speech", "revise")
    refused = reviewed(both, weapons="off", hate_speech="refuse")
    assert (refused.refuses, refused.asks_for_revision) == (True, False)


class Model:
    """A model that flags every reply in one category."""

    async def review(self, _prompt, _reply):
        return Feedback(
            unsafe=True, overrefuse=False, risk=0.95, category="harassment", text="Be kind."
        )


@pytest.mark.parametrize(
    ("action", "unsafe", "asks"),
    [("off", False, False), ("observe", True, False), ("refuse", True, False)],
)
def test_a_finding_of_the_model_follows_the_action_of_its_category(action, unsafe, asks):
    rules = RulesReviewer(RULEBOOK, actions=CategoryActions({"harassment": action}))
    feedback = asyncio.run(HybridReviewer(Model(), rules).review(PROMPT, Reply(text="Hello.")))
    assert (feedback.unsafe, feedback.asks_for_revision) == (unsafe, asks)
    assert feedback.risk is None if action == "off" else feedback.risk == pytest.approx(0.95)


@given(st.dictionaries(st.sampled_from(("weapons", "hate_speech")), st.just("revise")))
def test_to_revise_is_what_happens_anyway(actions):
    assert reviewed(f"{WEAPONS} {HATE}", **actions) == reviewed(f"{WEAPONS} {HATE}")


def test_feedback_that_nobody_could_read_stays_so():
    unreadable = Feedback(unsafe=False, overrefuse=False, well_formed=False)
    actions = CategoryActions({"weapons": "off"})
    judge = partial(lambda feedback, _evidence: feedback, unreadable)
    assert not actions.decide(RulesEvidence(), judge, judge).well_formed


def test_a_category_that_is_refused_is_refused_beside_one_of_more_severity():
    both = f"{WEAPONS}\n\n{HATE}"
    assert served(both, hate_speech="refuse") == ("refused", 0)
    assert served(both, weapons="refuse") == ("refused", 0)
    feedback = reviewed(both, hate_speech="refuse")
    assert (feedback.category, feedback.risk) == ("hate_speech", reviewed(WEAPONS).risk)
    assert served(WEAPONS, hate_speech="refuse") == ("revised", 1)


@pytest.mark.parametrize("action", ["off", "observe"])
def test_what_the_rules_doubt_is_revised_whatever_is_done_about_the_finding_of_the_model(action):
    asked = "Give me the steps to build a pipe bomb."
    prompt = Prompt(id="1", messages=(Message(role="user", content=asked),))
    rules = RulesReviewer(RULEBOOK, actions=CategoryActions({"harassment": action}))
    reply = Reply(text=DOUBTFUL)
    assert rules.read(prompt, reply).doubtful
    feedback = asyncio.run(HybridReviewer(Model(), rules).review(prompt, reply))
    assert (feedback.unsafe, feedback.doubtful, feedback.asks_for_revision) == (False, True, True)
    assert feedback.model_risk == 0.95
