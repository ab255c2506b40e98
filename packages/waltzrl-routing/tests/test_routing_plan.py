"""Plans leave and come back as JSON."""

import pytest

from waltzrl.errors import InputError
from waltzrl_routing import RoutingPlan
from waltzrl_routing.plan import Alternative, Explanation, read_plan

PLAN = RoutingPlan(
    assignments={"a": "x", "b": "x"},
    explanations={
        "a": Explanation(agent="x", rule="r", words="Rule r: it is so", end=1.0),
        "b": Explanation(
            agent="x",
            words="Capability match",
            alternatives=(Alternative("does not support code", ("y", "z")),),
        ),
        "c": Explanation(agent=None, words="no agent supports 'c'"),
    },
    unassigned=("c",),
    metadata={"seed": 0},
)


def test_a_plan_comes_back_as_it_left(tmp_path):
    (tmp_path / "plan.json").write_bytes(PLAN.to_json())
    assert read_plan(tmp_path / "plan.json") == PLAN


@pytest.mark.promise(
    "Requirements", "RoutingRule, AgentCapability, RoutingPlan; 26 rules, 16 agents"
)
def test_a_plan_counts_the_tasks_of_agents_and_those_of_none():
    assert PLAN.get_agent_workload() == {"x": 2}
    assert not PLAN.is_complete()
    assert list(PLAN.unassigned_tasks) == ["c"]


def test_a_plan_of_another_version_is_refused(tmp_path):
    (tmp_path / "plan.json").write_bytes(PLAN.to_json().replace(b'"version":1', b'"version":2'))
    with pytest.raises(InputError, match=r"plan\.json: version 2 is not known"):
        read_plan(tmp_path / "plan.json")
