import json
import re

import pytest

from make_tasks import make_tasks
from support.small_runs import run
from waltzrl.errors import InputError
from waltzrl_specialists import prepare_dataset
from waltzrl_specialists.checks import find_problems, read_lines
from waltzrl_specialists.datasets import (
    ADVISED,
    DATA,
    LEAST,
    scenarios_of,
    specialists,
)

SHIPPED_SETS = pytest.mark.promise(
    "Specialists",
    "Every set that is shipped has 100 rows or more, all labels right, no duplicates, and 18 "
    "scenarios that are not among the rows",
)
BAD_ROW = pytest.mark.promise(
    "Specialists", "A row without a column names file and line; three rows are refused"
)
WRITING = pytest.mark.promise(
    "Specialists", "Every task of writing passes its own checks, and fails them when damaged"
)

THINGS = (
    "apple",
    "bread",
    "cream",
    "dates",
    "eggs",
    "figs",
    "garlic",
    "honey",
    "icing",
    "jam",
    "kale",
)


def rows(count):
    return [{"prompt": f"{thing} in the box?", "completion": "One."} for thing in THINGS[:count]]


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@SHIPPED_SETS
@pytest.mark.parametrize("name", specialists())
def test_every_set_that_is_shipped_is_large_labelled_and_free_of_duplicates_and_leaks(name):
    dataset = prepare_dataset(name)
    assert len(dataset.examples) >= ADVISED
    assert dataset.left_out == 0
    assert len(dataset.scenarios) == 18
    for field, values in dataset.specialist.fields.items():
        expected = [scenario.checks["lines"][field] for scenario in dataset.scenarios]
        learnt = [read_lines(example.completion)[field] for example in dataset.examples]
        assert set(expected) == set(learnt) == set(values)


@SHIPPED_SETS
@pytest.mark.promise(
    "Requirements",
    "nanochat fine-tuner: prepare_dataset, estimate_cost, finetune, integrate_with_agent; fifteen "
    "agents",
)
def test_there_are_fifteen_sets_and_270_scenarios():
    names = {path.name.partition(".")[0] for path in DATA.glob("*.jsonl")}
    assert names == set(specialists())
    assert len(names) == 15
    assert sum(len(scenarios_of(name)) for name in names) == 270


def test_a_system_prompt_names_every_line_and_value():
    assert specialists()["qa"].system == (
        'You sort bug reports. Write a line "Severity: " with critical, major or minor, then a line'
        ' "Area: " with functional, performance, usability or compatibility, then one or two'
        " sentences of advice."
    )


def test_a_set_of_ones_own_is_named_after_its_file_and_gets_its_own_task(tmp_path):
    path = write(tmp_path / "boxes.jsonl", rows(11))
    dataset = prepare_dataset(str(path), "You know what is in boxes.")
    assert (dataset.name, dataset.specialist.system) == ("boxes", "You know what is in boxes.")
    assert (len(dataset.examples), dataset.left_out) == (11, 0)


@BAD_ROW
@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "Hello?"}, "missing required field `completion`"),
        ({"prompt": "Hello?", "completion": " "}, "completion is blank"),
        ({"prompt": 3, "completion": "Three."}, "Expected `str`, got `int`"),
    ],
)
def test_a_row_without_a_column_names_file_and_line(tmp_path, row, problem):
    path = write(tmp_path / "boxes.jsonl", [*rows(11), row])
    with pytest.raises(InputError) as error:
        prepare_dataset(str(path))
    assert f"{path}:12: " in str(error.value)
    assert problem in str(error.value)


@BAD_ROW
def test_three_rows_are_refused_and_a_few_more_are_warned_of(tmp_path, caplog):
    path = write(tmp_path / "boxes.jsonl", rows(3))
    with pytest.raises(InputError, match=f"has 3 rows to learn from; need {LEAST} or more"):
        prepare_dataset(str(path))
    assert len(prepare_dataset(str(write(path, rows(LEAST)))).examples) == LEAST
    assert caplog.messages == [f"{path} has {LEAST} rows; {ADVISED} or more are advised"]


def test_rows_that_nearly_repeat_an_earlier_one_are_left_out(tmp_path, caplog):
    again = {"prompt": "APPLE, in the box", "completion": "None."}
    path = write(tmp_path / "boxes.jsonl", [*rows(11), again])
    dataset = prepare_dataset(str(path))
    assert (len(dataset.examples), dataset.left_out) == (11, 1)
    assert f"{path}:12 nearly repeats {path}:1 and is left out" in caplog.messages


@pytest.mark.promise("Specialists", "A scenario that is among the rows is refused")
def test_a_scenario_that_is_among_the_rows_is_refused(tmp_path):
    path = write(tmp_path / "boxes.jsonl", rows(11))
    leak = {"prompt": "Bread in the box", "checks": {"facts": ["One"]}}
    write(tmp_path / "boxes.scenarios.jsonl", [leak])
    with pytest.raises(InputError, match=r"'scenario 1' is train .*boxes\.jsonl:2'"):
        prepare_dataset(str(path))


def test_a_name_that_is_neither_a_specialist_nor_a_file_is_explained():
    with pytest.raises(InputError, match=r"qaa: no specialist and no file; .* or one of qa, "):
        prepare_dataset("qaa")


def test_prepare_writes_rows_and_the_conversations_that_nanochat_reads(tmp_path, capsys):
    path = write(tmp_path / "boxes.jsonl", rows(11))
    task = ("--task", "You know boxes.")
    folders = ("--out", tmp_path / "rows", "--nanochat", tmp_path / "nanochat")
    assert run("specialists", "prepare", path, *task, *folders, "--json") == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "boxes", "rows": 11, "left_out": 0, "scenarios": 0}
    ]
    written = (tmp_path / "rows" / "boxes.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in written] == rows(11)
    first = json.loads((tmp_path / "nanochat" / "boxes.jsonl").read_text().splitlines()[0])
    assert first == [  # alternating turns that begin with the user's, as CustomJSON requires
        {"role": "user", "content": "You know boxes.\n\napple in the box?"},
        {"role": "assistant", "content": "One."},
    ]


WRITERS = [name for name, specialist in specialists().items() if not specialist.fields]


def tasks_of(name):
    return [*prepare_dataset(name).examples, *scenarios_of(name)]


@WRITING
@pytest.mark.parametrize("name", [name for name in WRITERS if name != "builder"])
def test_every_reference_passes_its_checks_and_a_damaged_one_fails_them(name):
    for task in tasks_of(name):
        assert find_problems(task.completion, task.checks) == {}
        # Without its last line, and with each number one too large.
        shortened = task.completion.rpartition("\n")[0]
        miscounted = re.sub(r"\d+", lambda number: str(int(number[0]) + 1), task.completion)
        for damaged in (
            (shortened, miscounted) if re.search(r"\d", task.completion) else (shortened,)
        ):
            assert find_problems(damaged, task.checks), damaged


@WRITING
def test_every_reference_in_python_passes_its_tests_and_a_damaged_one_fails_them():
    # All in one sandbox, because each takes a tenth of a second to start.
    tasks = [(task.completion, task.checks["tests"]) for task in tasks_of("builder")]
    run = (
        "def run(code, test):\n    names = {}\n    exec(code, names)\n    return eval(test, names)"
    )
    tests = [f"run({code!r}, {test!r})" for code, tests in tasks for test in tests]
    assert find_problems(run, {"tests": tests}) == {}
    for task in scenarios_of("builder")[:4]:
        assert find_problems(task.completion, task.checks) == {}
        assert find_problems(task.completion.replace("return", "yield"), task.checks)


@pytest.mark.promise("Specialists", "No fact of a held-out task of writing is one of a row")
@pytest.mark.parametrize("name", WRITERS)
def test_the_files_are_what_the_generator_writes_and_share_no_fact(name):
    rows, learnt = make_tasks(name, held_out=False)
    scenarios, asked = make_tasks(name, held_out=True)
    assert learnt.drawn.isdisjoint(asked.drawn)
    for suffix, tasks in (("", rows), (".scenarios", scenarios)):
        written = (DATA / f"{name}{suffix}.jsonl").read_text().splitlines()
        assert tasks == [json.loads(line) for line in written]


@pytest.mark.promise("Specialists", "A specialist of one's own names its checks, and brings them")
def test_a_set_of_ones_own_has_a_catalogue_entry_with_checks_of_its_own(tmp_path, monkeypatch):
    path = write(tmp_path / "boxes.jsonl", rows(11))
    (tmp_path / "boxes.toml").write_text(
        'task = "Say how many."\nchecks = ["words", "box_checks:check_shout"]\n'
    )
    (tmp_path / "box_checks.py").write_text(
        "def check_shout(reply, argument):\n"
        "    return None if reply == reply.upper() else 'it does not shout'\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    checks = {"words": [1, 2], "box_checks:check_shout": True}
    write(tmp_path / "boxes.scenarios.jsonl", [{"prompt": "Tar in it?", "checks": checks}])
    dataset = prepare_dataset(str(path))
    assert dataset.specialist.system == "Say how many."
    (scenario,) = dataset.scenarios
    assert find_problems("FOUR", scenario.checks) == {}
    assert find_problems("four or five", scenario.checks) == {
        "words": "3 words, not 1 to 2",
        "box_checks:check_shout": "it does not shout",
    }
    write(tmp_path / "boxes.scenarios.jsonl", [{"prompt": "Tar?", "checks": {"words": [1, 2]}}])
    with pytest.raises(InputError, match="checks are words; need words, box_checks:check_shout"):
        prepare_dataset(str(path))
    checks["words"] = "few"
    write(tmp_path / "boxes.scenarios.jsonl", [{"prompt": "Tar?", "checks": checks}])
    with pytest.raises(InputError, match=r"boxes\.scenarios\.jsonl:1: check words got 'few'"):
        prepare_dataset(str(path))


def test_a_scenario_without_the_lines_of_its_specialist_is_named(tmp_path):
    path = write(tmp_path / "boxes.jsonl", [row | {"completion": "Size: big"} for row in rows(11)])
    description = tmp_path / "boxes.toml"
    description.write_text('task = "Say how big."\nfields = { Size = ["Big", "Small"] }\n')
    assert len(prepare_dataset(str(path)).examples) == 11
    write(tmp_path / "boxes.scenarios.jsonl", [{"prompt": "Tar?", "checks": {"words": [1, 2]}}])
    with pytest.raises(InputError, match=r"scenarios\.jsonl:1: Size is None; need one of Big, Sm"):
        prepare_dataset(str(path))
    description.write_text('task = "Say how big."\nfields = { Size = ["Big"] }\n')
    with pytest.raises(InputError, match=r"boxes\.toml: Expected `array` of length >= 2"):
        prepare_dataset(str(path))
