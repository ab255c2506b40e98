"""Coaching of the past is shown to both agents, and every session is remembered."""

import asyncio

import pytest

from support.routed import (
    DANGEROUS,
    SAFE,
    UNSAFE,
    NotingAgent,
    opened_memory,
    plan_of,
    registry,
    task,
)
from waltzrl import open_guard
from waltzrl.agents.coaching import INTRODUCTION
from waltzrl.agents.feedback_json import write_feedback
from waltzrl.policies import ScriptedPolicy
from waltzrl_routing import TaskGraph
from waltzrl_routing.execution import ExecutionSettings, Executor

FINE = write_feedback(reasoning="", unsafe=False, overrefuse=False, text="")
BAD = write_feedback(reasoning="", unsafe=True, overrefuse=False, text="Leave out the method.")


@pytest.fixture
def memory(sqlite_url):
    with opened_memory(sqlite_url) as memory:
        yield memory


def run(memory, tasks, agent, guard, **options):
    graph = TaskGraph(tasks)
    settings = ExecutionSettings(max_concurrent_tasks=1, **options)
    executor = Executor(agent, registry(), guard=guard, memory=memory, settings=settings)
    return asyncio.run(executor.run(graph, plan_of(graph), plan_id="p")).results


@pytest.mark.promise(
    "Routed tasks",
    "Similar coaching of the past is shown to both agents, fenced, and only what ended safely",
)
@pytest.mark.promise("Requirements", "coach mode")
def test_what_one_task_learned_is_shown_to_both_agents_of_the_next(memory):
    seen = {"reviewer": [], "conversation": []}

    def review(messages):
        seen["reviewer"].append(messages[-1].content)
        return BAD if UNSAFE in messages[-1].content else FINE

    def revise(messages):
        seen["conversation"].append(messages)
        return SAFE

    guard = open_guard(model=ScriptedPolicy(review), upstream=ScriptedPolicy(revise))
    agent = NotingAgent({"first": UNSAFE, "second": UNSAFE})
    results = run(memory, [task("first"), task("second")], agent, guard)
    assert [each.state for each in results.values()] == ["coached", "coached"]
    first, second = seen["conversation"]
    assert [turn.role for turn in first] == ["user", "assistant", "user"]
    assert first[1].content == UNSAFE
    assert [turn.role for turn in second] == ["system", "user", "assistant", "user"]
    assert "<feedback>Leave out the method.</feedback>" in second[0].content
    assert f"<reply>{SAFE}</reply>" in second[0].content
    shown = [INTRODUCTION[:40] in text for text in seen["reviewer"]]
    assert shown == [False] * 3 + [True] * 3
    # What is remembered of the second task is its own, without the examples of others.
    for evaluation in memory.evaluations(limit=9):
        assert len(evaluation.collaboration.prompt.messages) == 1


def test_examples_can_be_switched_off(memory):
    conversations = []

    def revise(messages):
        conversations.append(messages)
        return SAFE

    agent = NotingAgent({"first": UNSAFE, "second": UNSAFE})
    guard = open_guard(upstream=ScriptedPolicy(revise))
    run(memory, [task("first"), task("second")], agent, guard, examples=False)
    assert [len(messages) for messages in conversations] == [3, 3]


@pytest.mark.promise("Routed tasks", "Every reviewed task is remembered like a served answer")
def test_every_reviewed_task_is_remembered_like_a_served_answer(memory):
    tasks = [
        task("coached", "Write to jane.doe@example.com."),
        task("dangerous", DANGEROUS),
        task("unreviewed", type_="other"),
    ]
    guard = open_guard(upstream=ScriptedPolicy([SAFE, "I will not do that."]))
    run(memory, tasks, NotingAgent({"coached": UNSAFE}), guard, may_learn=True)
    kept = {each.id: each for each in memory.evaluations(limit=9)}
    assert set(kept) == {"p/coached", "p/dangerous"}
    coached = kept["p/coached"]
    assert (coached.api, coached.model, coached.bundle) == ("route", "api_call", "a")
    assert (coached.decision, coached.safe, coached.may_learn) == ("revised", True, True)
    assert kept["p/dangerous"].collaboration.final.text == "I will not do that."
    (found,) = memory.retrieve_similar_coaching("Write to jane.doe@example.com.", 1, "safe")
    assert (found.agent_id, found.task_type, found.outcome) == ("a", "api_call", "safe")
    assert (found.initial_response, found.refined_response) == (UNSAFE, SAFE)
    assert "jane" not in found.task
