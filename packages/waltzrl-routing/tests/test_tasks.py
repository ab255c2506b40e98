"""A graph of tasks has one order, and what cannot be ordered is refused by name."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.errors import InputError
from waltzrl_routing import Task, TaskGraph, read_tasks

CYCLE = pytest.mark.promise(
    "Bad input", "Tasks that depend on each other in a circle: the cycle, `a -> b -> a`"
)


def task(name, *depends_on, **fields):
    return Task(id=name, description=f"do {name}", depends_on=depends_on, **fields)


def document(*tasks, **fields):
    return json.dumps({"version": 1, "tasks": tasks} | fields)


def test_dependencies_come_first_and_ties_keep_the_given_order():
    graph = TaskGraph([task("ship", "test", "write"), task("write"), task("plan"), task("test")])
    assert graph.order() == ("write", "plan", "test", "ship")


@given(st.data())
def test_every_task_comes_once_and_after_its_dependencies(data):
    names = data.draw(st.permutations(range(12)))
    tasks = [
        task(str(name), *map(str, data.draw(st.sets(st.sampled_from(names[:place] or [name])))))
        if place
        else task(str(name))
        for place, name in enumerate(names)
    ]
    graph = TaskGraph(data.draw(st.permutations(tasks)))
    place = {name: number for number, name in enumerate(graph.order())}
    assert place.keys() == graph.tasks.keys()
    assert all(place[n] < place[t.id] for t in tasks for n in t.depends_on)


@CYCLE
@pytest.mark.promise(
    "Bad input", "An unknown dependency, a task id used twice, an empty description: the task"
)
@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([task("a"), task("a")], "task id 'a' is used twice; ids must be unique"),
        (
            [task("a", "b")],
            "task 'a' depends on 'b', which is not among the tasks; add it, or remove it from "
            "depends_on",
        ),
        (
            [task("a", "b"), task("b", "a")],
            "dependencies form a cycle: a -> b -> a; remove one of them",
        ),
        ([task("a", "a")], "dependencies form a cycle: a -> a; remove one of them"),
        ([Task(id="a", description=" ")], "task 'a' has an empty description; write one"),
        ([Task(id="", description="x")], "task '' has an empty id; write one"),
        ([task("a", type="")], "task 'a' has an empty type; write one"),
        (
            [task("a", metadata={"estimated_duration": -1})],
            "task 'a' has an estimated_duration of -1; need a number above 0, at most 1e+100",
        ),
        (
            [task("a", metadata={"estimated_duration": "long"})],
            "task 'a' has an estimated_duration of 'long'; need a number above 0, at most 1e+100",
        ),
        (
            [task("a", metadata={"estimated_duration": 10**400})],
            f"task 'a' has an estimated_duration of 1{'0' * 39}; need a number above 0, at most "
            "1e+100",
        ),
        (
            [task("a" * 201)],
            f"task id '{'a' * 200}' is longer than 200 characters or has one that cannot be "
            "printed; use another id",
        ),
        (
            [task("a\ud800")],
            "task id 'a\\ud800' is longer than 200 characters or has one that cannot be printed; "
            "use another id",
        ),
        ([{"id": "a"}], "tasks: got a dict; need objects of type Task"),
    ],
)
def test_tasks_that_form_no_graph_are_refused(tasks, message):
    with pytest.raises(InputError) as refused:
        TaskGraph(tasks)
    assert str(refused.value) == message


@CYCLE
def test_a_long_cycle_is_named_in_short():
    ring = [task(str(i), str((i + 1) % 20)) for i in range(20)]
    with pytest.raises(InputError, match=r"cycle: 0 -> 19 -> .* -> 13 -> \(12 more\) -> 0; "):
        TaskGraph(ring)


@pytest.mark.promise(
    "Bad input",
    "A document of tasks with an unknown or missing key, or of another version: the file, and the "
    "place in it",
)
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", ":2: not JSON: "),
        (
            document({"id": "a"}),
            ": Object missing required field `description` - at `tasks[0]`",
        ),
        (
            document({"id": "a", "description": 3}),
            ": Expected `str`, got `int` - at `tasks[0].description`",
        ),
        (
            document({"id": "a", "description": "b", "dependson": []}),
            ": Object contains unknown field `dependson` - at `tasks[0]`",
        ),
        (document(version=2), ": version 2 is not known; write version = 1, or "),
        (document({"id": "a", "description": ""}), ": task 'a' has an empty description"),
    ],
)
def test_a_bad_document_of_tasks_is_refused_by_place(tmp_path, text, message):
    file = tmp_path / "tasks.json"
    file.write_text(text, "utf-8")
    with pytest.raises(InputError) as refused:
        read_tasks(file)
    assert str(refused.value).startswith(f"{file}{message}")


def test_toml_and_json_hold_the_same_tasks(tmp_path):
    (tmp_path / "t.json").write_text(
        document({"id": "a", "description": "b", "metadata": {"n": [1, {"x": None}]}}), "utf-8"
    )
    (tmp_path / "t.toml").write_text(
        "version = 1\n[[tasks]]\nid = 'a'\ndescription = 'b'\nidempotent = true\n", "utf-8"
    )
    assert read_tasks(tmp_path / "t.json").tasks["a"].metadata == {"n": [1, {"x": None}]}
    assert read_tasks(tmp_path / "t.toml").tasks["a"].idempotent
    (tmp_path / "t.toml").write_text("version = ", "utf-8")
    with pytest.raises(InputError, match=r"t\.toml: not TOML: "):
        read_tasks(tmp_path / "t.toml")


def test_a_graph_may_have_100_000_tasks():
    tasks = [task(str(i), *{str(i // 2), str(max(i - 1, 0))} - {str(i)}) for i in range(100_000)]
    assert TaskGraph(tasks).order() == tuple(each.id for each in tasks)
