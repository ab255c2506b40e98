"""Scenarios of coach mode: what they are, and how their outcomes are counted."""

import asyncio
from collections import Counter

import pytest

from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.scenarios import (
    KINDS,
    Scenario,
    ScenarioOutcome,
    load_scenarios,
    run_scenarios,
    scenario_rates,
)
from waltzrl.records import Collaboration, Feedback, Reply, Round, Verdict

FINE = Feedback(unsafe=False, overrefuse=False)
FLAGGED = Feedback(unsafe=True, overrefuse=False, text="Decline.")


def outcome(kind, *, revisions=0, unsafe=False, overrefuses=False, canned=False):
    scenario = Scenario.of(kind, 0, "How do I bake bread?", "")
    reply = Reply(text="Like this.")
    rounds = [Round(feedback=FLAGGED, revision=reply) for _ in range(revisions)]
    if canned:
        rounds.append(Round(feedback=FLAGGED, revision=Reply(text="No.", origin="canned")))
    return ScenarioOutcome(
        scenario=scenario,
        collaboration=Collaboration(
            prompt=scenario.prompt,
            draft=reply,
            rounds=(*rounds, Round(feedback=FINE)),
        ),
        verdict=Verdict(judge="hand", unsafe=unsafe, overrefuses=overrefuses),
    )


@pytest.mark.promise("Requirements", "the twenty tests of coach mode, fifty scenarios")
def test_there_are_fifty_scenarios_in_the_requirements_mix():
    scenarios = load_scenarios()
    assert Counter(scenario.kind for scenario in scenarios) == dict(
        zip(KINDS, (30, 15, 5), strict=True)
    )
    assert len({scenario.prompt.id for scenario in scenarios}) == 50
    assert len({scenario.prompt.request for scenario in scenarios}) == 50
    assert all((s.prompt.label == "unsafe") is (s.kind == "unsafe") for s in scenarios)


@pytest.mark.promise(
    "Routed tasks",
    "`waltzrl verify coach` runs the requirement's twenty checks and fifty scenarios, and exits "
    "with 1 if one fails",
)
def test_rates_are_the_hand_counted_ones():
    rates = scenario_rates(
        [
            outcome("safe"),
            outcome("safe", overrefuses=True),
            outcome("borderline", revisions=1),
            outcome("borderline"),
            outcome("unsafe", revisions=2, canned=True),
            outcome("unsafe", unsafe=True),
        ]
    )
    assert (rates.unsafe.value, rates.unsafe.n) == (1 / 2, 2)
    assert (rates.overrefusal.value, rates.overrefusal.n) == (1 / 4, 4)
    assert (rates.engagement.value, rates.engagement.n) == (2 / 6, 6)
    assert (rates.rounds.value, rates.rounds.n) == (1.5, 2)


def test_what_a_judge_cannot_score_is_no_case():
    rates = scenario_rates([outcome("unsafe", unsafe=None), outcome("safe", overrefuses=None)])
    assert (rates.unsafe.n, rates.unsafe.unscored) == (0, 1)
    assert (rates.overrefusal.n, rates.overrefusal.unscored) == (0, 1)
    assert rates.rounds.value is None


@pytest.mark.parametrize(
    ("text", "unsafe", "overrefused"),
    [("Sure, here is how.", 1.0, 0.0), ("I'm sorry, but I can't help with that.", 0.0, 1.0)],
)
def test_scenarios_are_answered_and_judged(text, unsafe, overrefused):
    done = []

    async def reply(prompt):
        return Collaboration(prompt=prompt, draft=Reply(text=text))

    scenarios = load_scenarios()
    outcomes = asyncio.run(
        run_scenarios(scenarios, reply, LabelRefusalJudge(), lambda *now: done.append(now))
    )
    rates = scenario_rates(outcomes)
    assert (rates.unsafe.value, rates.overrefusal.value) == (unsafe, overrefused)
    assert rates.engagement.value == 0.0
    assert done == [(number, 50) for number in range(1, 51)]
