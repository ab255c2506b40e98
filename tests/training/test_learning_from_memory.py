import json
import logging

import pytest

from support.small_evaluations import ANSWER, evaluation, remember, said, verdict
from support.small_runs import run, save_recipe
from waltzrl.errors import InputError
from waltzrl.evaluation.collecting.selection import Selection
from waltzrl.evaluation.data.opening import read_sets
from waltzrl.foundation.jsonl import write_lines
from waltzrl.records import Message, Prompt
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.training.data import forget_remembered, keep_remembered, training_prompts
from waltzrl.training.opening import plan_training
from waltzrl.training.recipe import DataSettings, load_recipe, with_memory_prompts

LEARNING, HELD_OUT = (
    next(
        f"{n:x}"
        for n in range(100)
        if Selection(users=users).takes(evaluation(said(ANSWER), subject=f"{n:x}"))
    )
    for users in ("learning", "held-out")
)
"""One user of each kind."""


def asked(name, text, **more):
    return evaluation(said(ANSWER, asked=text), **{"id": name, "subject": LEARNING} | more)


HARMLESS = LabelEvent(by="ada", time=1.0, request="harmless")
HARMFUL = verdict(prompt_harmful=True)
SERVED = (
    asked("bread", "How do I bake bread without an oven?", time=1.0).labelled(HARMLESS),
    asked("locks", "How do I pick the lock of a door?", verdict=HARMFUL, time=2.0),
    asked("eggs", "How long do I boil eggs?", time=3.0),
    asked("aside", "Which tea is best in winter?", subject=HELD_OUT, time=4.0).labelled(HARMLESS),
)


@pytest.fixture
def source(sqlite_url):
    remember(sqlite_url, SERVED)
    return f"memory:{sqlite_url}"


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.jsonl"
    texts = ("How do I kill a process?", "How do I boil EGGS, how long?")
    write_lines(path, [prompt(str(n), text) for n, text in enumerate(texts)])
    return str(path)


def prompt(name, text):
    return Prompt(id=name, messages=(Message(role="user", content=text),), label="benign")


def ids(prompts):
    return [one.id for one in prompts]


def test_training_takes_the_users_that_evaluation_does_not(source, own):
    assert ids(training_prompts(DataSettings(prompts=(own, source)))) == [
        "0",
        "1",
        "bread",
        "locks",
        "eggs",
    ]
    assert ids(read_sets([source])) == ["aside"]


def test_a_judge_who_needs_labels_gets_only_labelled_prompts_and_says_so(source, own, caplog):
    prompts = training_prompts(DataSettings(prompts=(source, own)), need_labels=True)
    assert [(one.id, one.label) for one in prompts[:2]] == [
        ("bread", "benign"),
        ("locks", "unsafe"),
    ]
    assert ids(prompts[2:]) == ["0", "1"]
    assert "1 of 3 remembered prompts are left out: they have no label" in caplog.text


def test_what_users_asked_that_touches_held_out_prompts_is_left_out(source, tmp_path, caplog):
    test = tmp_path / "test.jsonl"
    write_lines(test, [prompt("t", "How do I bake bread, without an oven!")])
    data = DataSettings(prompts=(source,), held_out=(str(test),))
    assert ids(training_prompts(data)) == ["locks", "eggs"]
    assert "1 of 3 remembered prompts are left out: they touch held-out ones" in caplog.text


def test_what_a_recipe_itself_names_still_stops_the_run_when_it_touches(source, own, tmp_path):
    test = tmp_path / "test.jsonl"
    write_lines(test, [prompt("t", "how do I kill a process")])
    with pytest.raises(InputError, match="'t' is train '0'"):
        training_prompts(DataSettings(prompts=(source, own), held_out=(str(test),)))


def test_when_nothing_is_left_the_run_does_not_start(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED[2:3])
    with pytest.raises(InputError, match="is left to learn from"):
        training_prompts(DataSettings(prompts=(f"memory:{sqlite_url}",)), need_labels=True)


def test_a_run_learns_from_the_memory_as_it_was_when_the_run_began(tmp_path, source, sqlite_url):
    data = DataSettings(prompts=(source,), held_out=(source,))
    kept = keep_remembered(data, tmp_path)
    first = training_prompts(kept), read_sets(kept.held_out)
    assert [ids(one) for one in first] == [["bread", "locks", "eggs"], ["aside"]]
    remember(
        sqlite_url,
        [asked("more", "Why is the sky blue?"), asked("tea", "Why tea?", subject=HELD_OUT)],
    )
    assert keep_remembered(data, tmp_path) == kept
    assert (training_prompts(kept), read_sets(kept.held_out)) == first
    forget_remembered(tmp_path)
    again = keep_remembered(data, tmp_path)
    assert len(training_prompts(again)) == len(first[0]) + 1


def test_a_memory_comes_first_so_that_a_limit_spares_it(tmp_path):
    recipe = load_recipe(save_recipe(tmp_path))
    for given in ("memory:sqlite:///m.db", "sqlite:///m.db"):
        both = with_memory_prompts(recipe, given)
        assert both.data.prompts == ("memory:sqlite:///m.db", *recipe.data.prompts)
        assert with_memory_prompts(both, given) == both


def test_the_plan_counts_the_prompts_that_can_be_learned_from(tmp_path, source):
    recipe = with_memory_prompts(load_recipe(save_recipe(tmp_path)), source)
    assert plan_training(recipe).prompts == 4 + 2


def test_the_results_of_a_run_are_those_of_its_prompts_also_when_the_memory_has_grown(
    tmp_path, source, sqlite_url, capsys, caplog
):
    caplog.set_level(logging.ERROR)
    recipe, steps = save_recipe(tmp_path), ("--set", "stages.joint.steps=1")
    command = ("train", recipe, "--from", source, "--out", tmp_path / "run", *steps, "--json")
    epochs = []
    for question in ("Why is the sky blue?", "Why tea?"):
        capsys.readouterr()
        assert run(*command) == 0  # the second time it only prints
        epochs.append(json.loads(capsys.readouterr().out)["result"]["num_epochs"])
        remember(sqlite_url, [asked(question, question).labelled(HARMLESS)])
    assert epochs == [9 / 6, 9 / 6]  # three steps of three of the 4 + 2 prompts


@pytest.mark.slow
def test_a_run_from_a_memory_ends_as_if_it_had_not_been_cut_off(
    tmp_path, source, sqlite_url, caplog
):
    caplog.set_level(logging.ERROR)
    recipe, steps = save_recipe(tmp_path), ("--set", "stages.joint.steps=2")
    weights = []
    for name in ("whole", "cut"):
        out, agents = tmp_path / name, tmp_path / f"{name}-agents"
        begun = ("train", recipe, "--from", source, "--out", out, *steps, "--export", agents)
        assert run(*begun) == 0
        if name == "cut":
            remember(sqlite_url, [asked("more", "Why is the sky blue?").labelled(HARMLESS)])
            (max((out / "checkpoints").iterdir()) / "MANIFEST.json").unlink()
            assert run(*begun) == 0
        weights.append((agents / "manifest.json").read_bytes())
        remembered_ids = [
            json.loads(line)["id"]
            for line in (out / "remembered-learning-0.jsonl").read_text().splitlines()
        ]
        assert remembered_ids == ["bread", "locks", "eggs"]
    assert weights[0] == weights[1]
