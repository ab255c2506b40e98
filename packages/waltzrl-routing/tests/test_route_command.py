"""`waltzrl route` shows a plan, and its exit code says whether every task has an agent."""

import json
from pathlib import Path
from xml.etree import ElementTree as ET

import msgspec
import pytest

from support.small_runs import run
from waltzrl_routing import RoutingPlan

ROOT = Path(__file__).parents[3]
TASKS = [
    {"id": "plan", "type": "design", "description": "Plan it."},
    {"id": "write", "type": "code", "description": "Write it.", "depends_on": ["plan"]},
]


@pytest.fixture
def tasks(tmp_path):
    def write(*more):
        path = tmp_path / "tasks.json"
        path.write_text(json.dumps({"version": 1, "tasks": [*TASKS, *more]}), "utf-8")
        return path

    return write


def test_a_table_says_who_does_what_and_why(tasks, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    assert run("route", tasks({"id": "[red]", "type": "\x1b[1m", "description": "x"})) == 1
    lines = capsys.readouterr().out.splitlines()
    assert any("plan" in line and "spec_agent" in line and "Rule design" in line for line in lines)
    assert any("[red]" in line and "\ufffd[1m" in line and "none" in line for line in lines)


def test_json_is_the_whole_plan(tasks, capsys):
    assert run("route", tasks(), "--agents", ROOT / "recipes/routing.toml", "--json") == 0
    plan = msgspec.json.decode(capsys.readouterr().out, type=RoutingPlan)
    assert plan.assignments == {"plan": "spec_agent", "write": "builder_agent"}


def test_a_task_that_nobody_can_do_exits_with_1(tasks, capsys):
    path = tasks()
    assert run("route", path, "--available", "builder_agent, qa_agent", "--json") == 1
    plan = msgspec.json.decode(capsys.readouterr().out, type=RoutingPlan)
    assert plan.unassigned == ("plan",)
    assert plan.explanations["plan"].words == "no agent that supports 'design' is available"


def test_pictures_are_written(tasks, tmp_path, capsys):
    svg, mermaid = tmp_path / "plan.svg", tmp_path / "plan.mmd"
    assert run("route", tasks(), "--svg", svg, "--mermaid", mermaid) == 0
    assert ET.parse(svg).getroot().get("aria-label") == "Plan of 2 tasks"
    assert mermaid.read_text("utf-8").startswith("flowchart LR\n")


@pytest.mark.promise(
    "Bad input", "An unknown dependency, a task id used twice, an empty description: the task"
)
@pytest.mark.parametrize(
    ("task", "arguments", "message"),
    [
        (
            {"id": "plan", "description": "again"},
            [],
            "task id 'plan' is used twice; ids must be unique",
        ),
        (
            {"id": "a", "description": "b", "depends_on": ["c"]},
            [],
            "task 'a' depends on 'c', which is not among the tasks; ",
        ),
        (
            {"id": "a", "description": "b", "depends_on": ["a"]},
            [],
            "dependencies form a cycle: a -> a; remove one of them",
        ),
        (
            {"id": "a", "description": "b"},
            ["--available", "nobody"],
            "agent 'nobody' is not registered; name one of spec_agent, ",
        ),
    ],
)
def test_tasks_that_cannot_be_routed_are_one_line_and_exit_with_2(
    tasks, capsys, task, arguments, message
):
    assert run("route", tasks(task), *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert printed.err.startswith("error: ")
    assert message in printed.err
