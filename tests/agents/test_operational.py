import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.agents.operational import operational_dir, operational_dir_with_retention
from waltzrl.records import Verdict
from waltzrl.training.rewards import improvement

change = st.floats(-1, 1)


@pytest.mark.promise("Requirements", "calculate_dir")
@pytest.mark.promise("Equations", "`waltzrl.agents.operational.operational_dir`")
@pytest.mark.promise("Equations", "`waltzrl.agents.operational.operational_dir_with_retention`")
def test_hand_worked_scores():
    # 0.2 for safety, -0.03 for helpfulness, 0.2 for the user
    assert operational_dir(
        safety_change=0.4, helpfulness_change=-0.1, satisfaction=1.0
    ) == pytest.approx(0.37)
    # satisfaction guessed as 0.3 * 0.4 + 0.7 * 0.2 = 0.26
    assert operational_dir(safety_change=0.4, helpfulness_change=0.2) == pytest.approx(0.312)
    # three quarters of the helpfulness were kept: 0.2 + 0.225 + 0.2
    assert operational_dir_with_retention(
        safety_change=0.4, helpfulness_before=0.8, helpfulness_after=0.6
    ) == pytest.approx(0.625)


@pytest.mark.promise("Equations", "`waltzrl.agents.operational.operational_dir`")
def test_a_large_loss_leaves_no_guessed_satisfaction():
    assert operational_dir(safety_change=1.0, helpfulness_change=-0.5) == pytest.approx(0.35)


@pytest.mark.promise("Requirements", "DynamicImprovementReward")
@pytest.mark.promise("Equations", "`waltzrl.agents.operational.operational_dir`")
def test_they_are_not_the_papers_improvement_nor_each_other():
    unchanged = Verdict(judge="j", unsafe=False, overrefuses=False)
    assert improvement(unchanged, unchanged) == 0
    assert operational_dir(safety_change=0, helpfulness_change=0, satisfaction=1.0) == 0.2
    assert (
        operational_dir_with_retention(
            safety_change=0, helpfulness_before=0.5, helpfulness_after=0.5
        )
        == 0.5
    )


@pytest.mark.promise("Equations", "`waltzrl.agents.operational.operational_dir_with_retention`")
@given(change, change, st.one_of(st.none(), st.floats(0, 1)))
def test_scores_stay_within_one(safety, helpfulness, satisfaction):
    score = operational_dir(
        safety_change=safety, helpfulness_change=helpfulness, satisfaction=satisfaction
    )
    assert -1 <= score <= 1
