"""Plans by hand, and what holds of every plan."""

from collections import Counter
from itertools import chain

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import InputError
from waltzrl_routing import (
    AgentCapability,
    AgentRegistry,
    Router,
    RoutingPlan,
    RoutingRule,
    Task,
    TaskGraph,
    load_registry,
)
from waltzrl_routing.success import success_rate


class Observed:
    """A history of given counts."""

    def __init__(self, **counts):
        self.counts = counts

    def success(self, agent, task_type):
        return self.counts.get(agent, (0, 0))


def agent(name, *types, **fields):
    return AgentCapability(agent_name=name, supported_task_types=types or ("code",), **fields)


def task(name, *depends_on, **fields):
    return Task(id=name, description=name, depends_on=depends_on, **{"type": "code"} | fields)


def rule(name, target, priority=10, **condition):
    return RoutingRule(rule_id=name, target_agent=target, priority=priority, condition=condition)


def registry(*agents, rules=()):
    return AgentRegistry(agents=agents, rules=tuple(rules))


def reasons(explanation):
    return {name: lost.reason for lost in explanation.alternatives for name in lost.agents}


def route(agents, *tasks, rules=(), history=None, **options):
    return Router(registry(*agents, rules=rules), history, **options).route(TaskGraph(tasks))


# Rules.


def test_rules_go_by_priority_and_then_by_id():
    agents = [agent("a"), agent("b"), agent("c")]
    rules = [
        rule("z", "a", 5, task_type="code"),
        rule("y", "b", 9, urgent=True),
        rule("x", "c", 9, urgent=True, language="go"),
    ]
    plan = route(
        agents,
        task("plain"),
        task("urgent", metadata={"urgent": True}),
        task("go", metadata={"urgent": True, "language": "go"}),
        rules=rules,
    )
    assert plan.assignments == {"plain": "a", "urgent": "b", "go": "c"}
    assert plan.explanations["go"].rule == "x"
    assert reasons(plan.explanations["go"]) == dict.fromkeys(
        ["a", "b"], "not the agent that rule x names"
    )


def test_the_sixteen_agents_take_the_tasks_of_their_rules():
    plan = Router(load_registry()).route(
        TaskGraph(
            [
                task("spec", type="design"),
                task("write", "spec"),
                task("check", "write", type="test"),
                task("bug", type="fix_bug", metadata={"target": "agent_code"}),
                task("other_bug", type="fix_bug"),
                task("talk", type="user_interaction"),
            ]
        )
    )
    assert plan.assignments == {
        "spec": "spec_agent",
        "write": "builder_agent",
        "check": "qa_agent",
        "bug": "darwin_agent",
        "other_bug": "builder_agent",
        "talk": "support_agent",
    }
    words = {name: explanation.words for name, explanation in plan.explanations.items()}
    assert words["spec"] == "Rule design: Designs begin with a specification"
    # Beta(1 + 8 * 0.82, 1 + 8 * 0.18) has the mean 7.56 / 10. "write" ended, and "bug" is darwin's.
    assert words["other_bug"] == (
        "Capability match: success rate 0.76 (0.46-0.95), 0 of 10 at work, medium"
    )
    assert reasons(plan.explanations["other_bug"])["darwin_agent"] == (
        "lower success rate: 0.10 (0.00-0.34) against 0.76 (0.46-0.95)"
    )
    assert reasons(plan.explanations["talk"])["spec_agent"] == (
        "does not support 'user_interaction'"
    )


def test_a_rules_target_at_capacity_leaves_the_task_to_another_free_agent():
    agents = [agent("a", max_concurrent_tasks=1), agent("b", max_concurrent_tasks=1)]
    rules = [rule("r", "a", task_type="code")]
    plan = route(agents, task("1"), task("2"), task("3"), rules=rules)
    assert plan.assignments == {"1": "a", "2": "b", "3": "a"}
    assert reasons(plan.explanations["2"]) == {"a": "at capacity, 1 of 1"}
    # Both are at work: the third task waits for the target of its rule.
    assert plan.explanations["3"].words == "Rule r: a; waits until 1 for a free place"
    assert (plan.explanations["3"].start, plan.explanations["3"].end) == (1, 2)


def test_a_rule_whose_target_lacks_a_skill_is_passed_over():
    agents = [agent("a"), agent("b", skills=("sql", "go"))]
    rules = [rule("r", "a", task_type="code")]
    plan = route(agents, task("1", skills=("sql",)), rules=rules)
    assert plan.assignments == {"1": "b"}
    assert reasons(plan.explanations["1"]) == {"a": "lacks the skill 'sql'"}


# Capability.


@pytest.mark.promise(
    "Routing",
    "Observed results outweigh an agent's own claim; intervals are those of the Beta posterior",
)
def test_the_higher_observed_success_wins_over_a_documents_claim():
    agents = [agent("claims", success_rate=1.0), agent("delivers", success_rate=0.5)]
    history = Observed(claims=(40, 100), delivers=(90, 100))
    plan = route(agents, task("1"), history=history)
    assert plan.assignments == {"1": "delivers"}
    lost = f"lower success rate: {success_rate(40, 100, 1.0)} against {success_rate(90, 100, 0.5)}"
    assert reasons(plan.explanations["1"]) == {"claims": lost}


def test_among_equals_the_less_busy_goes_first_and_then_the_cheaper():
    agents = [agent("dear", cost_tier="expensive"), agent("cheap", cost_tier="cheap")]
    plan = route(agents, task("1"), task("2"), task("3"))
    assert plan.assignments == {"1": "cheap", "2": "dear", "3": "cheap"}
    assert reasons(plan.explanations["1"]) == {"dear": "dearer: expensive against cheap"}
    assert reasons(plan.explanations["2"]) == {"cheap": "busier: 1 at work against 0"}


@pytest.mark.promise("Routing", "A place is free again when its task has ended")
def test_a_place_is_released_when_its_task_ends():
    agents = [agent("cheap", cost_tier="cheap"), agent("dear", cost_tier="expensive")]
    plan = route(agents, task("1"), task("2", "1"), task("3", "2"))
    assert set(plan.assignments.values()) == {"cheap"}
    assert [e.start for e in plan.explanations.values()] == [0, 1, 2]


def test_a_task_takes_as_long_as_estimated():
    agents = [agent("only", max_concurrent_tasks=1)]
    plan = route(
        agents,
        task("1", metadata={"estimated_duration": 2.5}),
        task("2", metadata={"estimated_duration": 1}),
        task("3", "2"),
    )
    assert [(e.start, e.end) for e in plan.explanations.values()] == [
        (0, 2.5),
        (2.5, 3.5),
        (3.5, 4.5),
    ]
    assert plan.explanations["2"].words.endswith("; waits until 2.5 for a free place")


@pytest.mark.promise("Requirements", "CostProfiler: get_success_rate, get_cheapest_agent")
def test_cost_goes_first_among_agents_whose_intervals_overlap_when_asked_for():
    agents = [
        agent("best", cost_tier="expensive"),
        agent("close", cost_tier="cheap"),
        agent("poor", cost_tier="cheap"),
    ]
    history = Observed(best=(95, 100), close=(93, 100), poor=(10, 100))
    assert route(agents, task("1"), history=history).assignments == {"1": "best"}
    plan = route(agents, task("1"), history=history, optimize_cost=True)
    assert plan.assignments == {"1": "close"}
    best, close, poor = (success_rate(n, 100) for n in (95, 93, 10))
    assert reasons(plan.explanations["1"]) == {
        "best": f"dearer: expensive against cheap, success rate {best} against {close}",
        "poor": f"success rate too far below the best: {poor} against {close}",
    }


# What is missing.


@pytest.mark.promise("Routing", "Every task has an agent that can do it, or a reason why none can")
@pytest.mark.parametrize(
    ("wanted", "available", "words"),
    [
        (task("1", type="art"), ["a", "b"], "no agent supports 'art'"),
        (task("1"), ["b"], "no agent that supports 'code' is available"),
        (
            task("1", skills=("sql", "go")),
            ["a", "b"],
            "no available agent that supports 'code' has the skills 'sql', 'go'",
        ),
    ],
)
def test_an_unassigned_task_says_what_is_missing(wanted, available, words):
    agents = registry(agent("a", skills=("sql",)), agent("b", "test"))
    plan = Router(agents).route(TaskGraph([wanted]), available)
    assert plan.unassigned == ("1",)
    assert plan.explanations["1"].words == words
    assert set(reasons(plan.explanations["1"])) == {"a", "b"}


def test_completed_tasks_are_not_planned_and_hold_nobody_up():
    graph = TaskGraph([task("1"), task("2", "1"), task("3", "2")])
    plan = Router(registry(agent("a"))).route(graph, completed=["1"])
    assert list(plan.explanations) == ["2", "3"]
    assert plan.explanations["2"].start == 0


@pytest.mark.promise(
    "Bad input", "An agent that is not registered, or whose token is not valid: the agent"
)
def test_unknown_names_are_refused():
    router, graph = Router(registry(agent("a"), agent("b"))), TaskGraph([task("1")])
    with pytest.raises(InputError, match="agent 'c' is not registered; name one of a, b"):
        router.route(graph, available_agents=["a", "c"])
    with pytest.raises(InputError, match="completed task '9' is not among the 1 tasks; remove it"):
        router.route(graph, completed=["9"])


# Laws.

TYPES = st.sampled_from(["code", "test", "art"])
SKILLS = st.lists(st.sampled_from(["sql", "go"]), unique=True).map(tuple)


@st.composite
def registries(draw):
    agents = tuple(
        AgentCapability(
            agent_name=f"agent_{number}",
            supported_task_types=tuple(
                draw(st.sets(st.sampled_from(["code", "test"]), min_size=1))
            ),
            skills=draw(SKILLS),
            cost_tier=draw(st.sampled_from(["cheap", "medium", "expensive"])),
            success_rate=draw(st.sampled_from([None, 0.0, 0.5, 0.9])),
            max_concurrent_tasks=draw(st.integers(1, 3)),
        )
        for number in range(draw(st.integers(1, 5)))
    )
    rules = tuple(
        rule(f"r{number}", target.agent_name, number, part=number, kind=draw(st.integers(0, 2)))
        for number, target in enumerate(agents[:3])
    )
    return AgentRegistry(agents=agents, rules=rules)


@st.composite
def graphs(draw):
    return TaskGraph(
        task(
            str(number),
            *map(
                str, sorted(draw(st.sets(st.integers(0, number - 1), max_size=3))) if number else ()
            ),
            type=draw(TYPES),
            skills=draw(SKILLS),
            metadata={
                "part": draw(st.integers(0, 3)),
                "kind": draw(st.integers(0, 2)),
                "estimated_duration": draw(st.sampled_from([1, 0.5, 3])),
            },
        )
        for number in range(draw(st.integers(1, 15)))
    )


cost = st.booleans()


@pytest.mark.promise("Routing", "Every task has an agent that can do it, or a reason why none can")
@given(registries(), graphs(), cost)
def test_every_task_is_explained_and_assigned_to_an_agent_that_can_do_it(agents, graph, cheaply):
    plan = Router(agents, optimize_cost=cheaply).route(graph)
    by_name = {agent.agent_name: agent for agent in agents.agents}
    assert list(plan.explanations) == list(graph.order())
    assert {*plan.assignments} | {*plan.unassigned} == graph.tasks.keys()
    assert len(plan.assignments) + len(plan.unassigned) == len(graph)
    for name, chosen in plan.assignments.items():
        assert graph.tasks[name].type in by_name[chosen].supported_task_types
        assert {*graph.tasks[name].skills} <= {*by_name[chosen].skills}
    for name in plan.unassigned:
        assert plan.explanations[name].words.startswith("no ")
        assert not any(
            graph.tasks[name].type in agent.supported_task_types
            and {*graph.tasks[name].skills} <= {*agent.skills}
            for agent in agents.agents
        )


@pytest.mark.promise(
    "Routing", "An explanation names every other agent exactly once, with a reason"
)
@given(registries(), graphs(), cost)
def test_an_explanation_names_every_other_agent_exactly_once(agents, graph, cheaply):
    plan = Router(agents, optimize_cost=cheaply).route(graph)
    for explanation in plan.explanations.values():
        named = Counter(chain.from_iterable(lost.agents for lost in explanation.alternatives))
        others = {agent.agent_name for agent in agents.agents} - {explanation.agent}
        assert named == Counter(others)
        assert all(lost.reason for lost in explanation.alternatives)


@pytest.mark.promise(
    "Routing",
    "No task starts before what it depends on has ended, and no agent has more tasks at once than "
    "it may",
)
@given(registries(), graphs())
def test_a_task_starts_after_what_it_depends_on_and_no_agent_has_too_many(agents, graph):
    plan = Router(agents).route(graph)
    for name, explanation in plan.explanations.items():
        needed = graph.tasks[name].depends_on
        assert explanation.start >= max((plan.explanations[n].end for n in needed), default=0)
    for agent in agents.agents:
        own = [e for e in plan.explanations.values() if e.agent == agent.agent_name]
        for moment in (explanation.start for explanation in own):
            at_work = [e for e in own if e.start <= moment < e.end]
            assert len(at_work) <= agent.max_concurrent_tasks


@pytest.mark.promise("Routing", "The same seed gives the same plan")
@given(registries(), graphs(), st.integers(0, 3))
def test_the_same_seed_gives_the_same_plan_and_it_survives_json(agents, graph, seed):
    plan = Router(agents, seed=seed).route(graph)
    assert Router(agents, seed=seed).route(graph) == plan
    assert msgspec.json.decode(plan.to_json(), type=RoutingPlan) == plan


@pytest.mark.promise("Routing", "An agent that supports none of the types changes no assignment")
@given(registries(), graphs(), cost)
def test_an_agent_that_supports_none_of_the_types_changes_no_assignment(agents, graph, cheaply):
    stranger = agent("stranger", "cooking", success_rate=1.0, cost_tier="cheap")
    more = AgentRegistry(agents=(stranger, *agents.agents), rules=agents.rules)
    plan = Router(agents, optimize_cost=cheaply).route(graph)
    other = Router(more, optimize_cost=cheaply).route(graph)
    assert other.assignments == plan.assignments
    assert [e.words for e in other.explanations.values()] == [
        e.words for e in plan.explanations.values()
    ]


def test_the_seed_breaks_ties():
    agents = [agent(name) for name in "abcdef"]
    chosen = {route(agents, task("1"), seed=seed).assignments["1"] for seed in range(20)}
    assert len(chosen) > 2
    plan = route(agents, task("1"))
    assert {*reasons(plan.explanations["1"]).values()} == {"tie broken by the seed"}


def test_ten_thousand_tasks_over_a_hundred_agents_are_all_planned():
    agents = [agent(f"agent_{number}", success_rate=number % 7 / 7) for number in range(100)]
    tasks = (task(str(n), *([str(n // 2)] if n else [])) for n in range(10_000))
    assert len(route(agents, *tasks).assignments) == 10_000
