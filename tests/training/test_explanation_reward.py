import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.training.rewards import (
    ExplanationCoefficients,
    ScoredExplanation,
    explanation_reward,
)

SCORED = ScoredExplanation(
    solution_logprobs=[-0.5, -1.5],
    teacher_logprobs=[-0.2, -0.4, -0.3],
    student_logprobs=[-0.2, -1.0, -0.6],
    well_formed=True,
)
NATS = st.floats(-20, 0)


def scored(solution, teacher, student, *, well_formed=True):
    return ScoredExplanation(
        solution_logprobs=solution,
        teacher_logprobs=teacher,
        student_logprobs=student,
        well_formed=well_formed,
    )


@pytest.mark.promise("Requirements", "RLT trainer")
@pytest.mark.promise("Equations", "`waltzrl.training.rewards.explanation_reward`")
def test_the_reward_of_an_explanation_by_hand():
    # solution: mean -1, min -1.5; differences 0, 0.6, 0.3: mean 0.3, max 0.6
    wanted = (1 * -1 + 0.01 * -1.5) - (3 * 0.3 + 0.03 * 0.6)
    assert explanation_reward(SCORED, ExplanationCoefficients()) == pytest.approx(wanted)
    assert wanted == pytest.approx(-1.933)


def test_an_explanation_that_cannot_be_read_costs_one_more():
    unreadable = scored([-1.0], [-0.5], [-0.5], well_formed=False)
    assert explanation_reward(unreadable, ExplanationCoefficients()) == pytest.approx(-1.01 - 1)
    assert explanation_reward(unreadable, ExplanationCoefficients(format=0.25)) == pytest.approx(
        -1.01 - 0.25
    )


def test_each_coefficient_weighs_its_own_term():
    none = {
        "solution_mean": 0,
        "solution_min": 0,
        "divergence_mean": 0,
        "divergence_max": 0,
        "format": 0,
    }
    terms = {
        "solution_mean": -1.0,
        "solution_min": -1.5,
        "divergence_mean": -0.3,
        "divergence_max": -0.6,
        "format": 0.0,
    }
    for name, term in terms.items():
        only = ExplanationCoefficients(**(none | {name: 2.0}))
        assert explanation_reward(SCORED, only) == pytest.approx(2 * term), name


def test_an_explanation_without_tokens_has_no_divergence():
    empty = scored([-2.0], [], [], well_formed=False)
    assert explanation_reward(empty, ExplanationCoefficients()) == pytest.approx(-2.02 - 1)


@pytest.mark.promise("Teacher", "Giving the solution away costs more than it earns")
def test_giving_the_solution_away_costs_more_than_it_earns():
    # "The solution is four" makes four certain; the student alone would have said one of four.
    leak = scored([0.0], [0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, -1.3863])
    reasons = scored([-0.1], [0.0, 0.0, 0.0, 0.0], [-0.05, -0.05, -0.05, -0.05])
    without = ExplanationCoefficients(divergence_mean=0, divergence_max=0)
    assert explanation_reward(leak, without) > explanation_reward(reasons, without)
    default = ExplanationCoefficients()
    # -3 * 1.3863 / 4 - 0.03 * 1.3863 = -1.0813; -0.101 - 3 * 0.05 - 0.03 * 0.05 = -0.2525
    assert explanation_reward(leak, default) == pytest.approx(-1.0813, abs=1e-4)
    assert explanation_reward(reasons, default) == pytest.approx(-0.2525)


@given(st.lists(NATS, min_size=1), st.lists(NATS, min_size=1), st.floats(0.01, 5))
def test_a_likelier_solution_never_pays_less(solution, explanation, gain):
    before = scored(solution, explanation, explanation)
    after = scored([min(0.0, nats + gain) for nats in solution], explanation, explanation)
    default = ExplanationCoefficients()
    assert explanation_reward(after, default) >= explanation_reward(before, default)
