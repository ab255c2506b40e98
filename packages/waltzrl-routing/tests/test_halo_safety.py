"""The requirement's names for routing with safety."""

import asyncio

import pytest

from support.routed import (
    CHECKED,
    DANGEROUS,
    HARMLESS,
    SAFE,
    UNSAFE,
    NotingAgent,
    opened_memory,
    registry,
    task,
)
from waltzrl import GuardSettings, Reply, open_guard
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.errors import InputError, PolicyError, SecurityError, WaltzError
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import CANNED_REFUSAL
from waltzrl_routing import AgentCapability, AgentRegistry, HALORouter, TaskDAG
from waltzrl_routing.execution import ExecutionSettings
from waltzrl_routing.halo import HALORouterWithSafety
from waltzrl_routing.tokens import AgentTokens

NAMES_AND_SHAPES = pytest.mark.promise(
    "Routed tasks",
    "`route_with_safety` and `route_tasks_with_safety` keep the requirement's names and shapes, "
    "and review every field that `execute` gets; what nobody measures is absent or None",
)
ROUTER_WITH_SAFETY = pytest.mark.promise(
    "Requirements", "HALORouterWithSafety: route_tasks_with_safety, waltzrl_enabled, ENABLE_WALTZRL"
)
ROUTE_WITH_SAFETY = pytest.mark.promise(
    "Requirements", "HALORouter.route_with_safety, WrappedResponse, the structured reply"
)

REFUSAL = "I'm sorry, but I can't help with that."
TASKS = [
    task("a"),
    task("b", DANGEROUS),
    task("c", depends_on=["b"]),
    task("d", type_="other"),
    task("e", depends_on=["d"]),
]


def coached(*drafts, **settings):
    return open_guard(upstream=ScriptedPolicy(drafts), settings=GuardSettings(**settings))


def router(guard, **options):
    return HALORouterWithSafety(registry(), guard=guard, **options)


def with_safety(guard, task_, execute, **options):
    halo = router(guard, **options)
    return asyncio.run(halo.route_with_safety(task_, {"execute": execute}))


def returns(reply):
    async def execute(_task):
        return reply

    return execute


# Plans


@NAMES_AND_SHAPES
@ROUTER_WITH_SAFETY
def test_safety_leaves_the_plan_as_it_is_and_tells_what_it_did():
    agent = NotingAgent({"a": UNSAFE})
    guard = coached(UNSAFE, SAFE, REFUSAL, max_rounds=3)
    halo = router(guard, settings=ExecutionSettings(max_concurrent_tasks=1))
    plan, coaching = asyncio.run(halo.route_tasks_with_safety(TASKS, agent))
    assert plan == asyncio.run(HALORouter(registry()).route_tasks(TASKS))
    assert agent.ran == ["a", "d", "e"]
    assert {name: each["state"] for name, each in coaching["results"].items()} == {
        "a": "coached",
        "b": "declined",
        "e": "done",
    }
    assert coaching["results"]["a"] == {
        "rounds": 2,
        "final_safe": True,
        "state": "coached",
        "reason": "",
        "response": SAFE,
    }
    assert coaching["avg_coaching_rounds"] == 1.0  # of a with 2 rounds and e with none
    assert coaching["final_safe"] is True


def test_without_agents_the_conversation_agent_answers_what_is_safety_critical():
    answers = ScriptedPolicy(lambda messages: REFUSAL if DANGEROUS in str(messages) else SAFE)
    plan, coaching = asyncio.run(
        router(open_guard(upstream=answers)).route_tasks_with_safety(TASKS)
    )
    assert set(plan.assignments) == set("abcde")
    assert {name: each["response"] for name, each in coaching["results"].items()} == {
        "a": SAFE,
        "b": REFUSAL,
        "e": SAFE,
    }


def test_tasks_that_can_be_read_once_only_are_checked_too():
    agent = NotingAgent()
    guarded = router(coached(REFUSAL))
    plan, coaching = asyncio.run(guarded.route_tasks_with_safety(iter(TASKS), agent))
    assert set(plan.assignments) == set("abcde")
    assert coaching["results"]["b"]["state"] == "declined"
    assert sorted(agent.ran) == ["a", "d", "e"]


def test_completed_tasks_are_not_done_again():
    dag, agent = TaskDAG(TASKS), NotingAgent()
    dag.completed = {"a", "b"}
    plan, _ = asyncio.run(router(open_guard()).route_tasks_with_safety(dag, agent))
    assert set(plan.assignments) == {"c", "d", "e"}
    assert sorted(agent.ran) == ["c", "d", "e"]


def test_with_safety_too_only_agents_with_a_valid_token_work_and_cost_counts():
    tokens = AgentTokens(b"s" * 32)
    agents = AgentRegistry(
        agents=tuple(
            AgentCapability(
                agent_name=name, supported_task_types=(CHECKED,), cost_tier=tier, success_rate=rate
            )
            for name, tier, rate in (
                ("dear", "expensive", 0.9),
                ("cheap", "cheap", 0.4),
                ("other", "cheap", 0.1),
            )
        )
    )

    def chosen(granted, constraints=None, **options):
        halo = HALORouterWithSafety(agents, tokens, guard=open_guard(), **options)
        plan, _ = asyncio.run(
            halo.route_tasks_with_safety([task("a")], NotingAgent(), None, granted, constraints)
        )
        return plan.assignments["a"]

    valid = {name: tokens.issue(name) for name in ("dear", "cheap")}
    assert chosen(valid) == "dear"
    assert chosen({"other": tokens.issue("other")}) == "other"
    assert chosen(valid, enable_cost_optimization=True) == "cheap"
    assert chosen(valid, {"max_cost_tier": "cheap"}) == "cheap"
    with pytest.raises(SecurityError, match="the token of agent 'dear' is not valid"):
        chosen({"dear": tokens.issue("cheap")})
    with pytest.raises(SecurityError, match="agent_tokens is empty"):
        chosen(None)


def test_the_seed_breaks_ties_with_safety_as_without():
    agents, tasks = registry(a=1, b=1, c=1), [task(str(number)) for number in range(3)]
    for seed in range(4):
        halo = HALORouterWithSafety(agents, guard=open_guard(), seed=seed)
        plan, _ = asyncio.run(halo.route_tasks_with_safety(tasks, NotingAgent()))
        assert plan == asyncio.run(HALORouter(agents, seed=seed).route_tasks(tasks))


@ROUTER_WITH_SAFETY
def test_the_switch_is_an_argument_or_the_variable(monkeypatch):
    agent = NotingAgent()
    _, coaching = asyncio.run(
        router(None, waltzrl_enabled=False).route_tasks_with_safety(TASKS, agent)
    )
    assert sorted(agent.ran) == ["a", "b", "c", "d", "e"]
    assert coaching == {"results": {}, "avg_coaching_rounds": None, "final_safe": True}
    monkeypatch.setenv("ENABLE_WALTZRL", "False")
    assert not router(None).waltzrl_enabled
    assert router(open_guard(), waltzrl_enabled=True).waltzrl_enabled
    monkeypatch.setenv("ENABLE_WALTZRL", "maybe")
    with pytest.raises(InputError, match="ENABLE_WALTZRL: got 'maybe', need true or false"):
        router(open_guard())
    monkeypatch.setenv("ENABLE_WALTZRL", "")
    with pytest.raises(InputError, match="safety is switched on and there is no guard"):
        router(None)


def test_the_seven_safety_critical_types_are_the_registrys():
    assert HALORouterWithSafety(guard=open_guard()).safety_critical_task_types == {
        "user_interaction",
        "customer_support",
        "data_access",
        "security",
        "code_generation",
        "content_generation",
        "api_call",
    }


# One task


@NAMES_AND_SHAPES
@ROUTE_WITH_SAFETY
def test_a_good_reply_comes_back_with_its_safety():
    one = {"task_id": "t", "task_type": "support", "description": HARMLESS, "agent_name": "a"}
    answer = with_safety(open_guard(), one, returns({"response": SAFE, "tokens": 7}))
    safety = answer.pop("safety")
    assert answer == {"response": SAFE, "tokens": 7}
    assert safety.pop("analysis_time_ms") > 0
    assert safety.pop("total_time_ms") > 0
    assert safety.pop("timestamp") > 0
    assert safety == {
        "response": SAFE,
        "original_response": SAFE,
        "changes_made": False,
        "blocked": False,
        "block_reason": "",
        "safety_score": 1.0,
        "helpfulness_score": None,
        "feedback": "",
        "reasoning": "",
        "risk_score": 0.0,
        "risk_categories": [],
        "draft_risk_score": 0.0,
        "draft_risk_categories": [],
        "rounds": 0,
        "final_safe": True,
    }
    assert "confidence" not in safety


def test_an_unsafe_reply_is_coached():
    answer = with_safety(coached(SAFE), {"description": HARMLESS}, returns(UNSAFE))
    safety = answer["safety"]
    assert answer["response"] == safety["response"] == SAFE
    assert (safety["original_response"], safety["changes_made"]) == (UNSAFE, True)
    assert (safety["blocked"], safety["rounds"], safety["final_safe"]) == (False, 1, True)
    assert (safety["risk_score"], safety["risk_categories"]) == (0.0, [])
    assert (safety["draft_risk_score"], safety["draft_risk_categories"]) == (0.9, ["weapons"])


def test_a_reply_that_stays_unsafe_is_blocked_with_scores():
    answer = with_safety(open_guard(), {"description": HARMLESS}, returns(Reply(text=UNSAFE)))
    safety = answer["safety"]
    assert (answer["response"], safety["blocked"]) == (CANNED_REFUSAL, True)
    assert safety["block_reason"].startswith("its result is unsafe (weapons")
    assert (safety["risk_score"], safety["risk_categories"]) == (0.9, ["weapons"])
    assert safety["safety_score"] == pytest.approx(0.1)


def test_a_dangerous_request_is_not_executed():
    ran = []

    async def execute(task_):
        ran.append(task_)

    answer = with_safety(open_guard(), {"description": DANGEROUS}, execute)
    assert ran == []
    assert (answer["response"], answer["safety"]["blocked"]) == (CANNED_REFUSAL, True)
    assert answer["safety"]["original_response"] == ""
    assert answer["safety"]["draft_risk_score"] is None
    assert answer["safety"]["draft_risk_categories"] == []


@pytest.mark.promise(
    "Bad input",
    "An `execute` that is missing, raises, hangs, or returns nothing or no text: the task, and "
    "what its agent did",
)
@ROUTE_WITH_SAFETY
@pytest.mark.parametrize("context", [{}, {"execute": None}, {"execute": "x"}])
def test_without_an_execute_that_can_be_called_it_is_a_value_error(context):
    with pytest.raises(ValueError, match=r"context\['execute'\] is .*; need a coroutine function"):
        asyncio.run(router(open_guard()).route_with_safety({"description": HARMLESS}, context))


async def raises(_task):
    raise RuntimeError("no network")


async def hangs(_task):
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("execute", "reason"),
    [
        (raises, "its agent raised RuntimeError: no network"),
        (hangs, "its agent took more than 0.05 s"),
        (returns(None), "its agent raised InputError: got NoneType; need a text, or a dict"),
        (returns({"text": "x"}), "its agent raised InputError: got dict; need a text, or a dict"),
        (lambda _task: SAFE, "its agent raised InputError: execute returned str; need `async def"),
    ],
)
def test_what_execute_does_wrong_is_one_clear_error(execute, reason):
    one = {"task_id": "t", "description": HARMLESS}
    with pytest.raises(WaltzError, match=f"task 't' failed: {reason}"):
        with_safety(open_guard(), one, execute, settings=ExecutionSettings(timeout_seconds=0.05))


@NAMES_AND_SHAPES
def test_every_field_that_execute_gets_is_reviewed():
    for field in ("task_id", "task_type", "agent_name", "skills", "instructions", "metadata"):
        one = {
            "description": HARMLESS,
            field: {"x": DANGEROUS} if field == "metadata" else DANGEROUS,
        }
        answer = with_safety(open_guard(), one, raises)
        assert answer["safety"]["block_reason"].startswith("its request is unsafe"), field


@pytest.mark.parametrize("field", ["metadata", "steps"])
def test_a_task_that_is_not_json_is_refused(field):
    for value in ({"x": object()}, {"x": "\ud800"}):
        with pytest.raises(InputError, match="cannot be written as JSON"):
            with_safety(open_guard(), {"description": HARMLESS, field: value}, returns(SAFE))


def test_without_a_review_there_is_no_reply():
    def fails(_messages):
        raise PolicyError("the server is down")

    with pytest.raises(WaltzError, match="its request could not be reviewed: the server is down"):
        with_safety(
            open_guard(model=ScriptedPolicy(fails)), {"description": HARMLESS}, returns("x")
        )


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, r"task\['description'\] is None; need the text"),
        ({"description": " "}, r"task\['description'\] is ' '; need the text"),
        ({"description": "x", "metadata": 7}, r"task\['metadata'\] is int; need a dict"),
    ],
)
def test_a_task_without_its_text_is_refused(wrong, message):
    with pytest.raises(InputError, match=message):
        with_safety(open_guard(), wrong, returns("x"))


def test_where_safety_is_off_the_task_is_just_done():
    answer = with_safety(None, {"description": DANGEROUS}, returns("x"), waltzrl_enabled=False)
    assert answer == {"response": "x"}


def test_sessions_are_remembered_and_shown(sqlite_url):
    seen = []

    def revise(messages):
        seen.append(messages[0].content)
        return SAFE

    guard = open_guard(upstream=ScriptedPolicy(revise))
    with opened_memory(sqlite_url) as memory:
        one = {"task_id": "1", "task_type": CHECKED, "description": HARMLESS, "agent_name": "a"}
        for id_ in ("1", "2"):
            with_safety(guard, {**one, "task_id": id_}, returns(UNSAFE), memory=memory)
        kept = memory.retrieve_similar_coaching(HARMLESS)
        assert {session.coaching_session_id for session in kept} == {"1", "2"}
        assert {(session.agent_id, session.task_type) for session in kept} == {("a", CHECKED)}
    assert seen[0] == HARMLESS
    assert f"<reply>{SAFE}</reply>" in seen[1]


def test_the_model_explains_itself_in_the_structured_reply():
    def review(messages):
        unsafe = UNSAFE in messages[-1].content
        return write_feedback(
            reasoning="It helps." if unsafe else "",
            unsafe=unsafe,
            overrefuse=False,
            text="Decline." if unsafe else "",
        )

    guard = open_guard(model=ScriptedPolicy(review), upstream=ScriptedPolicy([SAFE]))
    safety = with_safety(guard, {"description": HARMLESS}, returns(UNSAFE))["safety"]
    assert (safety["reasoning"], safety["response"]) == ("It helps.", SAFE)
    assert safety["feedback"].startswith("Decline.")
