"""A plan is resumed from the memory: what has ended is not run again."""

import asyncio
import time

import msgspec
import pytest

from support.routed import (
    DANGEROUS,
    SAFE,
    UNSAFE,
    NotingAgent,
    opened_memory,
    plan_of,
    registry,
    states,
    task,
)
from waltzrl import open_guard
from waltzrl.errors import InputError, StorageError
from waltzrl.policies import ScriptedPolicy
from waltzrl.store.memory.erasure import erase_subject
from waltzrl.store.memory.plans import PLANS, TASKS, StoredPlan, StoredTask
from waltzrl_routing import Router, TaskGraph
from waltzrl_routing.execution import ExecutionSettings, Executor
from waltzrl_routing.progress import PlanProgress, SuccessHistory

RESUMED = pytest.mark.promise(
    "Routed tasks", "A plan whose process ended is resumed without running finished tasks again"
)
OTHER_PLAN = pytest.mark.promise(
    "Bad input",
    "A plan of other tasks or agents; a plan that is being run; an id that was used for other "
    "tasks: the task, the agent or the plan",
)
NOT_TWICE = pytest.mark.promise(
    "Routed tasks",
    "Nothing is executed twice: a task is noted before its agent runs, by one of several",
)
KEPT_PRIVATELY = pytest.mark.promise(
    "Routed tasks",
    "Results of tasks are kept without personal data, expire, and are erased with their subject",
)
LEARNED = pytest.mark.promise(
    "Routed tasks", "Success rates are learned from what agents did and are to blame for"
)

TASKS_OF_ALL_KINDS = [
    task("done"),
    task("coached"),
    task("declined", DANGEROUS),
    task("blocked", depends_on=["declined"]),
    task("last", depends_on=["done", "coached"]),
]
ONE_AT_A_TIME = ExecutionSettings(max_concurrent_tasks=1)


class PowerCutError(BaseException):
    """Ends a run as a crash does: nothing is stored after it."""


async def power_cut():
    raise PowerCutError


@pytest.fixture
def memory(database_url):
    with opened_memory(database_url) as memory:
        yield memory


def run(memory, tasks, agent, guard=None, settings=None, **options):
    graph = TaskGraph(tasks)
    executor = Executor(agent, registry(), guard=guard, memory=memory, settings=settings)
    options = {"plan_id": "p", **options}
    return asyncio.run(executor.run(graph, plan_of(graph), **options)).results


def crash(memory, tasks, agent, **options):
    with pytest.raises(PowerCutError):
        run(memory, tasks, agent, **options)


def test_a_plan_that_has_ended_is_not_run_again(memory):
    agent = NotingAgent({"coached": UNSAFE})
    guard = open_guard(upstream=ScriptedPolicy([SAFE, "I will not."] * 2))
    first = run(memory, TASKS_OF_ALL_KINDS, agent, guard)
    assert states(first) == {
        "done": "done",
        "coached": "coached",
        "declined": "declined",
        "blocked": "blocked",
        "last": "done",
    }
    again = NotingAgent()
    assert run(memory, TASKS_OF_ALL_KINDS, again, open_guard()) == first
    assert again.ran == []


@RESUMED
def test_after_a_crash_only_what_had_not_ended_is_run(memory):
    tasks = [task("a"), task("b", depends_on=["a"]), task("c", depends_on=["b"])]
    crash(memory, tasks, NotingAgent({"b": power_cut}))
    agent = NotingAgent()
    results = run(memory, [*tasks], agent)
    assert states(results) == {"a": "done", "b": "interrupted", "c": "blocked"}
    assert agent.ran == []
    assert results["b"].reason.startswith("the process ended while its agent ran")
    assert results["c"].reason == "it depends on 'b', which is interrupted"


@RESUMED
def test_a_task_that_was_interrupted_is_run_again_if_it_is_idempotent_or_named(memory):
    tasks = [task("a", idempotent=True), task("b"), task("c", depends_on=["a", "b"])]
    crash(memory, tasks, NotingAgent({"a": power_cut}), settings=ONE_AT_A_TIME)
    crash(memory, tasks, NotingAgent({"b": power_cut}), settings=ONE_AT_A_TIME)
    agent = NotingAgent()
    assert states(run(memory, tasks, agent)) == {"a": "done", "b": "interrupted", "c": "blocked"}
    assert agent.ran == []
    assert states(run(memory, tasks, agent, rerun={"b"})) == dict.fromkeys("abc", "done")
    assert agent.ran == ["b", "c"]
    assert agent.works[1].results == {"a": "result of a", "b": "result of b"}


def test_what_failed_or_was_declined_is_run_again_only_if_it_is_named(memory):
    tasks = [task("a"), task("b", DANGEROUS), task("c", depends_on=["a"])]
    run(memory, tasks, NotingAgent({"a": ""}), open_guard())
    agent = NotingAgent()
    assert states(run(memory, tasks, agent, open_guard())) == {
        "a": "failed",
        "b": "declined",
        "c": "blocked",
    }
    assert agent.ran == []
    results = run(memory, tasks, agent, open_guard(), rerun={"a", "b"})
    assert states(results) == {"a": "done", "b": "declined", "c": "done"}
    assert agent.ran == ["a", "c"]


def test_only_tasks_that_were_not_done_can_be_named(memory):
    run(memory, [task("a")], NotingAgent())
    with pytest.raises(InputError, match="rerun: task 'a' is done already"):
        run(memory, [task("a")], NotingAgent(), rerun={"a"})
    with pytest.raises(InputError, match="rerun: there is no task 'z' among the 1 tasks"):
        run(memory, [task("a")], NotingAgent(), rerun={"z"})


@OTHER_PLAN
def test_a_plan_of_other_tasks_is_refused(memory):
    run(memory, [task("a")], NotingAgent())
    agent = NotingAgent()
    with pytest.raises(InputError, match="plan 'p' was begun with other tasks; resume it with"):
        run(memory, [task("a", "Something else.")], agent)
    assert agent.ran == []
    assert states(run(memory, [task("a", "Something else.")], agent, plan_id="q")) == {"a": "done"}


@pytest.mark.parametrize("plan_id", ["2026-11-22T05:00:00.1", "a\0", "a" * 201])
def test_a_name_that_a_plan_cannot_have_is_refused(memory, plan_id):
    with pytest.raises(InputError, match=r"plan_id is '.*'; need at most 200 printable characters"):
        run(memory, [task("a")], NotingAgent(), plan_id=plan_id)
    assert memory.store.search(PLANS) == []


def test_names_of_full_length_are_kept(memory):
    tasks, plan_id = [task("a" * 200), task("b", depends_on=["a" * 200])], "p" * 200
    run(memory, tasks, NotingAgent(), plan_id=plan_id)
    assert set(states(run(memory, tasks, NotingAgent(), plan_id=plan_id)).values()) == {"done"}


def test_a_resumed_plan_is_kept_with_its_new_agents_and_what_was_interrupted(memory):
    tasks = [task("a"), task("b", depends_on=["a"])]
    crash(memory, tasks, NotingAgent({"a": power_cut}))
    graph = TaskGraph(tasks)
    executor = Executor(NotingAgent(), registry(a=1, b=1), guard=None, memory=memory)
    asyncio.run(executor.run(graph, plan_of(graph, lambda name: "b"), plan_id="p"))
    plan = msgspec.convert(memory.store.get(PLANS, "p").value, StoredPlan)
    assert [(each.id, each.agent_id, each.depends_on) for each in plan.tasks] == [
        ("a", "b", ()),
        ("b", "b", ("a",)),
    ]
    stored = msgspec.convert(memory.store.get((*TASKS, "p"), "a").value, StoredTask)
    assert (stored.state, stored.agent_id) == ("interrupted", "a")


@NOT_TWICE
@OTHER_PLAN
def test_a_plan_that_is_being_run_is_refused_and_another_is_not(memory):
    refused = []

    async def execute(work):
        graph = TaskGraph([task("a")])
        with pytest.raises(InputError, match="plan 'p' is being run by somebody else"):
            await Executor(execute, registry(), guard=None, memory=memory).run(
                graph, plan_of(graph), plan_id="p"
            )
        refused.append(work.task.id)
        return "done"

    assert states(run(memory, [task("a")], execute)) == {"a": "done"}
    assert refused == ["a"]


@NOT_TWICE
def test_a_task_is_started_by_one_of_two(memory):
    runners = [PlanProgress(memory, "p"), PlanProgress(memory, "p")]
    with runners[0].opened("digest", ()):
        runners[0].start(task("a"), "a")
        with pytest.raises(InputError, match="task 'a' of plan 'p' was started by somebody else"):
            runners[1].start(task("a"), "a")


@NOT_TWICE
def test_nothing_is_run_that_cannot_be_noted(memory):
    agent = NotingAgent()

    class Broken(PlanProgress):
        def start(self, task, agent):
            raise StorageError("the disk is full")

    class BrokenExecutor(Executor):
        def _open_progress(self, plan_id, subject):
            return Broken(memory, plan_id)

    executor = BrokenExecutor(agent, registry(), guard=None, memory=memory)
    graph = TaskGraph([task("a")])
    with pytest.raises(StorageError, match="the disk is full"):
        asyncio.run(executor.run(graph, plan_of(graph), plan_id="p"))
    assert agent.ran == []


@KEPT_PRIVATELY
def test_results_are_stored_without_personal_data(memory):
    tasks = [task("a"), task("b", depends_on=["a"])]
    address = "Write to jane.doe@example.com."
    crash(memory, tasks, NotingAgent({"a": address, "b": power_cut}))
    agent = NotingAgent()
    run(memory, tasks, agent, rerun={"b"})
    assert "jane" not in agent.works[0].results["a"]
    assert agent.works[0].results["a"].startswith("Write to ")


@KEPT_PRIVATELY
def test_what_is_kept_of_a_plan_expires_and_is_erased_with_its_subject(memory):
    settings = ExecutionSettings(keep_days=2)
    guard = open_guard()
    run(memory, [task("a")], NotingAgent(), guard, settings, subject="jane")
    run(memory, [task("a")], NotingAgent(), guard, settings, plan_id="q")
    erased = erase_subject(memory.store.engine, "digest of jane")
    assert erased == {"routing.plans": 1, "routing.tasks.p": 1, "safety.waltzrl.evaluations": 1}
    assert [item.key for item in memory.store.search(PLANS)] == ["q"]
    assert memory.sweep(time.time() + 2 * 86_400 - 60) == 0
    assert memory.sweep(time.time() + 2 * 86_400) == 2
    assert memory.store.search(TASKS) == []


@pytest.mark.promise(
    "Routed tasks",
    "The records of a plan expire together, so that no task is forgotten and run again",
)
def test_a_plan_that_is_resumed_late_keeps_all_that_it_did(memory):
    tasks = [task("a"), task("b")]
    run(memory, tasks, NotingAgent({"b": ""}), settings=ExecutionSettings(keep_days=2))
    run(memory, tasks, NotingAgent(), settings=ExecutionSettings(keep_days=4), rerun={"b"})
    assert memory.sweep(time.time() + 3 * 86_400) == 0
    agent = NotingAgent()
    assert states(run(memory, tasks, agent)) == {"a": "done", "b": "done"}
    assert agent.ran == []


@LEARNED
def test_the_router_learns_who_does_well(memory):
    graph = TaskGraph([task(str(number)) for number in range(12)])
    agents = registry(a=10, b=10)
    plan = plan_of(graph, lambda task_id: "a" if int(task_id) % 2 else "b")
    agent = NotingAgent({task_id: "" for task_id in graph.order() if int(task_id) % 2})
    executor = Executor(agent, agents, guard=None, memory=memory)
    asyncio.run(executor.run(graph, plan, plan_id="p"))
    learned = Router(agents, SuccessHistory(memory)).route(TaskGraph([task("next")]))
    assert learned.assignments == {"next": "b"}


@LEARNED
def test_success_is_learned_from_what_agents_did_and_are_to_blame_for(memory):
    tasks = [
        task("done"),
        task("coached"),
        task("fails"),
        task("unsafe"),
        task("request", DANGEROUS),
        task("other", type_="other"),
        task("below", depends_on=["fails"]),
    ]
    replies = {"coached": UNSAFE, "fails": "", "unsafe": UNSAFE}

    def revise(messages):
        return SAFE if "coach me" in messages[0].content else UNSAFE

    tasks[1] = task("coached", "Please coach me.")
    run(memory, tasks, NotingAgent(replies), open_guard(upstream=ScriptedPolicy(revise)))
    history = SuccessHistory(memory)
    assert history.success("a", "api_call") == (2, 4)
    assert history.success("a", "other") == (1, 1)
    assert history.success("b", "other") == (0, 0)
