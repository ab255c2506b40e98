"""Metrics and spans of tasks have the requirement's names and no content."""

import asyncio

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry, generate_latest

from support.routed import DANGEROUS, SAFE, UNSAFE, NotingAgent, plan_of, registry, task
from waltzrl import open_guard
from waltzrl.budget import LEDGER, Ledger, ModelPrice, PriceBook, read_ledger
from waltzrl.policies import ScriptedPolicy
from waltzrl.records import Collaboration, Feedback, Message, Prompt, Reply, Round, Usage
from waltzrl.store.memory.plans import TaskResult
from waltzrl_routing import TaskGraph
from waltzrl_routing.costs import TaskCosts
from waltzrl_routing.execution import Executor
from waltzrl_routing.runner import EndedTask
from waltzrl_routing.telemetry import TaskMetrics
from waltzrl_routing.traces import TaskTraces

TASKS = [
    task("good"),
    task("coached", "Please coach me."),
    task("bad", DANGEROUS),
    task("below", depends_on=["bad"]),
    task("free", type_="other"),
]


def run(observer, guard=None):
    def revise(messages):
        return SAFE if "coach me" in messages[0].content else UNSAFE

    graph, agent = TaskGraph(TASKS), NotingAgent({"coached": UNSAFE})
    guard = open_guard(upstream=ScriptedPolicy(revise))
    executor = Executor(agent, registry(), guard=guard)
    executor.observers.append(observer)
    asyncio.run(executor.run(graph, plan_of(graph)))


@pytest.mark.promise(
    "Routed tasks", "Metrics and spans of tasks have the requirement's names and hold no text"
)
def test_tasks_rounds_and_times_are_counted():
    metrics, exported = TaskMetrics(), CollectorRegistry()
    exported.register(metrics)
    run(metrics.add)

    def value(name, **labels):
        return exported.get_sample_value(f"waltzrl_{name}", labels)

    assert value("tasks_total", agent="a", state="done") == 2
    for state in ("coached", "declined", "blocked"):
        assert value("tasks_total", agent="a", state=state) == 1
    # Reviewed were good with 0 rounds, coached with 1, and bad, whose request was discussed once.
    assert value("coaching_rounds_count", bundle="", stage="route") == 3
    assert value("coaching_rounds_bucket", bundle="", stage="route", le="0.0") == 1
    assert value("coaching_rounds_sum", bundle="", stage="route") == 2
    assert value("conversation_generation_time_ms_count", model="a") == 3
    assert value("feedback_evaluation_time_ms_count", agent="a") == 3
    assert value("feedback_evaluation_time_ms_sum", agent="a") > 0
    assert "bomb" not in generate_latest(exported).decode()


@pytest.fixture
def spans():
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("caller"):
        run(TaskTraces(provider).add)
    return exporter.get_finished_spans()


@pytest.mark.promise(
    "Routed tasks", "Metrics and spans of tasks have the requirement's names and hold no text"
)
def test_a_task_is_a_span_with_its_agents_and_its_reviews_time_below(spans):
    (caller,) = (span for span in spans if span.name == "caller")
    tasks = [span for span in spans if span.name == "waltzrl.task"]
    assert [span.parent.span_id for span in tasks] == [caller.context.span_id] * 5
    states = [span.attributes["waltzrl.task.state"] for span in tasks]
    assert sorted(states) == ["blocked", "coached", "declined", "done", "done"]
    (coached,) = (span for span in tasks if span.attributes["waltzrl.task.state"] == "coached")
    below = [s for s in spans if s.parent and s.parent.span_id == coached.context.span_id]
    assert [span.name for span in below] == [
        "waltzrl.conversation.generate",
        "waltzrl.feedback.evaluate",
    ]
    assert coached.start_time == below[0].start_time < below[0].end_time == below[1].start_time
    assert below[1].end_time == coached.end_time
    assert coached.attributes["waltzrl.round"] == 1
    assert [span.status.description for span in tasks if not span.status.is_ok] == ["request"]


@pytest.mark.promise(
    "Routed tasks", "Metrics and spans of tasks have the requirement's names and hold no text"
)
def test_spans_hold_no_text(spans):
    assert not any("bomb" in span.to_json() or "summary" in span.to_json() for span in spans)


@pytest.mark.promise(
    "Cost", "Revisions of routed tasks, and the answers of a gateway's judge, are charged"
)
def test_the_revisions_of_tasks_are_charged(tmp_path):
    prices = PriceBook({"tiny": ModelPrice(input=100.0, output=1000.0)})
    usage = Usage(input_tokens=100, output_tokens=20, model="tiny")
    coached = Collaboration(
        prompt=Prompt(id="plan/coached", messages=(Message(role="user", content="Hi"),)),
        draft=Reply(text="the agent's", origin="given"),
        rounds=(
            Round(
                feedback=Feedback(unsafe=True, overrefuse=False),
                revision=Reply(text="better", usage=usage),
            ),
        ),
    )
    result = TaskResult(id="coached", task_type="x", state="coached")
    with Ledger(tmp_path / LEDGER) as ledger:
        costs = TaskCosts(ledger, prices, "http://127.0.0.1:9/v1")
        costs.add(EndedTask(result=result, collaboration=coached))
        costs.add(EndedTask(result=result))  # not reviewed
        run(TaskCosts(ledger, prices, "http://127.0.0.1:9/v1").add)  # whose tokens nobody counted
    first, *others = read_ledger(tmp_path / LEDGER).charges
    assert (first.id, first.activity, first.usd) == ("plan/coached", "routing", 0.03)
    assert others
    assert all(each.usd is None and each.items[0].uncounted == 1 for each in others)
