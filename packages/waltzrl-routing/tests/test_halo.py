"""The router under the requirement's names."""

import asyncio

import pytest

from waltzrl.errors import CycleError, InputError, SecurityError
from waltzrl_routing import (
    AgentCapability,
    AgentRegistry,
    AgentTokens,
    HALORouter,
    Router,
    RoutingRule,
    Task,
    TaskDAG,
    TaskGraph,
    TeamValidationResult,
    load_registry,
)

TASK_DAG = pytest.mark.promise(
    "Requirements", "TaskDAG: add_task, add_dependency, topological_sort, has_cycle, max_depth"
)

SECRET = bytes(range(32))


def task(name, *depends_on, kind="code"):
    return Task(id=name, type=kind, description="x", depends_on=depends_on)


def agent(name, *types, **fields):
    return AgentCapability(agent_name=name, supported_task_types=types, **fields)


def route(router, *arguments, **options):
    return asyncio.run(router.route_tasks(*arguments, **options))


TASKS = [task("a", kind="design"), task("b", "a"), task("c", "b", kind="test")]


@pytest.mark.promise("Requirements", "HALORouter: route_tasks, rules, agents, teams, tokens")
@pytest.mark.parametrize("form", [list, TaskGraph, TaskDAG])
def test_a_list_a_graph_and_a_dag_give_the_routers_own_plan(form):
    plan = route(HALORouter(), form(TASKS))
    assert plan == Router(load_registry()).route(TaskGraph(TASKS))
    assert list(plan.assignments) == ["a", "b", "c"]


def test_completed_tasks_of_a_dag_are_not_routed():
    dag = TaskDAG(TASKS)
    dag.completed.add("a")
    assert list(route(HALORouter(), dag).assignments) == ["b", "c"]


def test_an_explanation_is_that_of_the_last_plan():
    router = HALORouter()
    with pytest.raises(InputError, match="task 'a' is not in the last plan; route it first"):
        router.get_routing_explanation("a")
    route(router, TASKS)
    assert router.get_routing_explanation("a") == "Rule design: Designs begin with a specification"


# Tokens.


@pytest.mark.promise("Routing", "No agent without a valid token is used where tokens are verified")
def test_only_agents_with_a_valid_token_are_used():
    tokens = AgentTokens(SECRET)
    router = HALORouter(auth_registry=tokens)
    valid = {name: tokens.issue(name) for name in ("spec_agent", "builder_agent")}
    plan = route(router, TASKS, agent_tokens=valid)
    assert plan.assignments == {"a": "spec_agent", "b": "builder_agent"}
    assert plan.unassigned == ("c",)


@pytest.mark.promise("Routing", "No agent without a valid token is used where tokens are verified")
@pytest.mark.promise(
    "Bad input", "An agent that is not registered, or whose token is not valid: the agent"
)
@pytest.mark.promise("Requirements", "HALORouter: route_tasks, rules, agents, teams, tokens")
@pytest.mark.parametrize(
    "token",
    ["", "x", "99999999999.00", "é.é", AgentTokens(SECRET).issue("qa_agent")],
    ids=["empty", "short", "forged", "foreign", "of another agent"],
)
def test_a_bad_token_is_refused(token):
    router = HALORouter(auth_registry=AgentTokens(SECRET))
    with pytest.raises(SecurityError, match="the token of agent 'spec_agent' is not valid"):
        route(router, TASKS, agent_tokens={"spec_agent": token})


@pytest.mark.promise("Routing", "No agent without a valid token is used where tokens are verified")
def test_tokens_are_never_taken_unverified():
    with pytest.raises(SecurityError, match="agent_tokens is empty"):
        route(HALORouter(auth_registry=AgentTokens(SECRET)), TASKS)
    with pytest.raises(SecurityError, match="cannot be verified: there is no auth_registry"):
        route(HALORouter(), TASKS, agent_tokens={"spec_agent": "x"})
    tokens = AgentTokens(SECRET)
    with pytest.raises(SecurityError, match="the token of agent 'stranger' is not valid"):
        route(
            HALORouter(auth_registry=tokens),
            TASKS,
            agent_tokens={"stranger": tokens.issue("stranger")},
        )


def test_a_token_ends_after_a_day_and_belongs_to_one_agent_and_secret():
    now = [1000.0]
    tokens = AgentTokens(SECRET, lambda: now[0])
    token = tokens.issue("a")
    assert tokens.verify("a", token)
    assert not tokens.verify("b", token)
    assert not AgentTokens(SECRET[::-1], lambda: now[0]).verify("a", token)
    now[0] += 24 * 3600 - 1
    assert tokens.verify("a", token)
    now[0] += 1
    assert not tokens.verify("a", token)


def test_a_short_secret_is_refused():
    with pytest.raises(InputError, match="the secret of agent tokens has 5 bytes; need 32"):
        AgentTokens(b"short")


# Agents and rules that change.


@pytest.mark.promise("Requirements", "HALORouter: route_tasks, rules, agents, teams, tokens")
def test_a_revoked_agent_gets_nothing_until_it_is_registered_again():
    router = HALORouter()
    spec = router.agent_registry.agents[0]
    router.revoke_agent("spec_agent")
    assert not router.is_agent_registered("spec_agent")
    plan = route(router, TASKS)
    assert plan.unassigned == ("a",)
    with pytest.raises(InputError, match="'spec_agent' is not registered; there is nothing"):
        router.revoke_agent("spec_agent")
    router.register_agent(spec)
    assert router.is_agent_registered("spec_agent")
    assert route(router, TASKS).assignments["a"] == "spec_agent"


@pytest.mark.promise("Requirements", "HALORouter: route_tasks, rules, agents, teams, tokens")
def test_agents_and_rules_may_be_added_and_changed():
    router = HALORouter(AgentRegistry(agents=(agent("x", "code"),)))
    assert route(router, [task("1")]).assignments == {"1": "x"}
    router.register_agent(agent("y", "code", success_rate=0.9))
    assert route(router, [task("1")]).assignments == {"1": "y"}
    router.add_routing_rule(
        RoutingRule(rule_id="r", condition={"task_type": "code"}, target_agent="x")
    )
    assert route(router, [task("1")]).assignments == {"1": "x"}
    router.update_agent_capability(agent("x", "code", max_concurrent_tasks=1))
    assert route(router, [task("1"), task("2")]).assignments == {"1": "x", "2": "y"}


def test_changes_that_cannot_work_leave_the_router_as_it_was():
    router = HALORouter(AgentRegistry(agents=(agent("x", "code"),)))
    before = router.agent_registry
    with pytest.raises(InputError, match="agent 'x' is defined twice"):
        router.register_agent(agent("x", "test"))
    with pytest.raises(InputError, match="agent 'z' is not registered; register it first"):
        router.update_agent_capability(agent("z", "code"))
    with pytest.raises(InputError, match="rule 'r' can never match: its target 'z'"):
        router.add_routing_rule(RoutingRule(rule_id="r", condition={}, target_agent="z"))
    assert router.agent_registry == before


def test_cost_can_be_bounded_and_optimised():
    agents = AgentRegistry(
        agents=(
            agent("dear", "code", cost_tier="expensive", success_rate=0.9),
            agent("middling", "code", cost_tier="medium", success_rate=0.5),
            agent("cheap", "code", cost_tier="cheap", success_rate=0.4),
        )
    )

    def chosen(constraints=None, **options):
        plan = route(HALORouter(agents, **options), [task("1")], None, None, constraints)
        return plan.assignments["1"]

    assert chosen() == "dear"
    assert chosen({"max_cost_tier": "medium"}) == "middling"
    assert chosen({"optimize_cost": True}) == "cheap"
    assert chosen(enable_cost_optimization=True) == "cheap"
    with pytest.raises(InputError, match="constraint 'max_cost' is unknown; use max_cost_tier or"):
        chosen({"max_cost": 3})
    with pytest.raises(InputError, match="max_cost_tier is 3; need one of cheap, medium, exp"):
        chosen({"max_cost_tier": 3})


# Teams.


def test_a_team_that_can_do_the_task_is_valid():
    result = HALORouter().validate_team_composition(
        ["backend_agent", "security_agent"], "security", ["sql", "code_review"]
    )
    assert result == TeamValidationResult(
        is_valid=True, reasons=(), required_capabilities=("sql", "code_review")
    )


@pytest.mark.promise("Requirements", "HALORouter: route_tasks, rules, agents, teams, tokens")
def test_a_team_that_cannot_is_told_every_reason():
    result = HALORouter().validate_team_composition(
        ["backend_agent", "backend_agent", "stranger"], "finance", ["forecasting"]
    )
    assert not result.is_valid
    assert result.reasons == (
        "agent 'backend_agent' is named 2 times",
        "agent 'stranger' is not registered",
        "nobody has the skill 'forecasting'",
        "type 'finance' needs 'security_agent'",
    )
    high = HALORouter().validate_team_composition(["qa_agent"], "test", security_level="high")
    assert high.reasons == ("a high security level needs 'security_agent'",)


def test_a_team_needs_tokens_where_they_are_verified():
    tokens = AgentTokens(SECRET)
    router = HALORouter(auth_registry=tokens)
    assert router.validate_team_composition(["qa_agent"], "test").reasons == (
        "agent 'qa_agent' has no valid token",
    )
    valid = {"qa_agent": tokens.issue("qa_agent")}
    assert router.validate_team_composition(["qa_agent"], "test", agent_tokens=valid).is_valid


# The graph that grows.


@TASK_DAG
def test_a_dag_grows_and_knows_its_order_and_depth():
    dag = TaskDAG([task("ship")])
    dag.add_task(task("write"))
    dag.add_task(task("plan"))
    dag.add_dependency("ship", "write")
    dag.add_dependency("write", "plan")
    dag.add_dependency("write", "plan")
    assert dag.topological_sort() == ["plan", "write", "ship"]
    assert dag.max_depth() == 3
    assert not dag.has_cycle()


@TASK_DAG
def test_a_dag_with_a_cycle_says_so_and_is_not_routed():
    dag = TaskDAG([task("a"), task("b", "a")])
    dag.add_dependency("a", "b")
    assert dag.has_cycle()
    with pytest.raises(CycleError, match="dependencies form a cycle: a -> b -> a"):
        route(HALORouter(), dag)


def test_a_dag_refuses_what_it_does_not_know():
    dag = TaskDAG([task("a")])
    with pytest.raises(InputError, match="task id 'a' is used twice"):
        dag.add_task(task("a"))
    with pytest.raises(InputError, match="there is no task 'b'; add it first"):
        dag.add_dependency("a", "b")
