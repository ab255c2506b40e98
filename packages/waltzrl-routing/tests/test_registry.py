"""The sixteen agents, and registries that are refused."""

from pathlib import Path

import pytest

import waltzrl_routing
from waltzrl.errors import InputError
from waltzrl_routing import AgentCapability, AgentRegistry, RoutingRule, load_registry

RECIPE = Path(__file__).parents[3] / "recipes/routing.toml"


def agent(name, *types, **fields):
    return AgentCapability(agent_name=name, supported_task_types=types, **fields)


def rule(name, target, priority=10, **condition):
    return RoutingRule(rule_id=name, target_agent=target, priority=priority, condition=condition)


@pytest.mark.promise(
    "Requirements", "RoutingRule, AgentCapability, RoutingPlan; 26 rules, 16 agents"
)
def test_sixteen_agents_and_26_rules_come_with_the_package():
    registry = load_registry()
    assert len(registry.agents) == 16
    assert len(registry.rules) == 26
    assert {a.agent_name: a.success_rate for a in registry.agents}["security_agent"] == 0.90
    darwin = registry.agents[-1]
    assert (darwin.success_rate, darwin.cost_tier, darwin.max_concurrent_tasks) == (
        0.0,
        "expensive",
        3,
    )
    priorities = {r.rule_id: r.priority for r in registry.rules}
    assert (priorities["generic"], priorities["api_call"], priorities["evolution"]) == (5, 15, 20)


def test_every_safety_critical_type_has_an_agent():
    registry = load_registry()
    assert len(registry.safety_critical) == 7
    supported = {kind for agent in registry.agents for kind in agent.supported_task_types}
    assert set(registry.safety_critical) <= supported


def test_the_recipe_is_the_packages_own_file():
    package = Path(waltzrl_routing.__file__).parent
    assert RECIPE.resolve() == (package / "agents.toml").resolve()
    assert load_registry(RECIPE) == load_registry()


A, B = agent("a", "x", "y"), agent("b", "x")


@pytest.mark.promise(
    "Routing", "A rule that can never match is refused, and the rule before it named"
)
@pytest.mark.promise(
    "Bad input",
    "An agent without types of tasks; a rule that can never match: the agent; the rule, and the "
    "one before it",
)
@pytest.mark.parametrize(
    ("agents", "rules", "message"),
    [
        ([A, agent("a", "z")], [], "agent 'a' is defined twice; names must be unique"),
        ([agent("a")], [], "agent 'a' supports no type of task; list some in "),
        ([agent("a", "x", success_rate=1.5)], [], "agent 'a' has a success_rate of 1.5; need 0 "),
        (
            [agent("a", "x", max_concurrent_tasks=0)],
            [],
            "agent 'a' has max_concurrent_tasks = 0; need 1 or more",
        ),
        ([agent("", "x")], [], "the name of one agent is empty; names must be unique"),
        ([A], [rule("r", "a"), rule("r", "a")], "rule 'r' is defined twice; names must be unique"),
        (
            [A],
            [rule("r", "c")],
            "rule 'r' can never match: its target 'c' is not registered; register it, or name "
            "one of a",
        ),
        (
            [A, B],
            [rule("r", "b", task_type="y")],
            "rule 'r' can never match: its target 'b' does not support 'y', only x",
        ),
        (
            [A, B],
            [rule("r", "b", task_type="x", urgent=True), rule("s", "a", 11, task_type="x")],
            "rule 'r' can never match: rule 's' comes first and matches whatever it matches; "
            "raise its priority, narrow 's', or remove one",
        ),
        (
            [A, B],
            [rule("s", "b", task_type="x"), rule("r", "a", task_type="x")],
            "rule 's' can never match: rule 'r' comes first and ",
        ),
        ([A], [rule("r", "a", 10, task_type="x"), rule("q", "a")], "rule 'r' can never match: "),
    ],
)
def test_a_registry_that_cannot_work_is_refused(agents, rules, message):
    with pytest.raises(InputError) as refused:
        AgentRegistry(agents=tuple(agents), rules=tuple(rules))
    assert str(refused.value).startswith(message)


def test_a_safety_critical_type_that_no_agent_supports_is_a_mistake():
    with pytest.raises(InputError, match="safety_critical has 'X', which no agent supports"):
        AgentRegistry(agents=(A,), safety_critical=("X",))
    AgentRegistry(agents=(A,), safety_critical=("x", "api_call"))  # the usual ones may stay
    AgentRegistry(agents=(A,), safety_critical=())


def test_a_rule_that_can_match_beside_a_wider_one_is_accepted():
    wider = rule("wide", "b", 20)
    # b supports x only, so tasks of type y pass the wider rule by.
    AgentRegistry(agents=(A, B), rules=(wider, rule("r", "a", task_type="y")))
    # c has a skill that b lacks, so tasks that need it pass by too.
    skilled = agent("c", "x", skills=("french",))
    AgentRegistry(agents=(B, skilled), rules=(wider, rule("r", "c", task_type="x")))


def test_a_bad_file_of_agents_is_refused_by_name_and_place(tmp_path):
    file = tmp_path / "agents.toml"
    file.write_text("version = 1\n[[agents]]\nagent_name = 'a'\n", "utf-8")
    with pytest.raises(InputError) as refused:
        load_registry(file)
    assert str(refused.value) == (
        f"{file}: Object missing required field `supported_task_types` - at `agents[0]`"
    )
    file.write_text("[[agents]]\nagent_name = 'a'\nsupported_task_types = []\n", "utf-8")
    with pytest.raises(InputError, match=r"agents\.toml: agent 'a' supports no type of task"):
        load_registry(file)
    with pytest.raises(InputError, match=r"cannot read .*missing\.toml"):
        load_registry(tmp_path / "missing.toml")
