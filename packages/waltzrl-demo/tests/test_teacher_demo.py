"""`waltzrl demo teacher`: its questions, its runs in small, and how it compares."""

import asyncio
import json

import msgspec
import pytest

from support.small_runs import run
from waltzrl.evaluation.data.solutions import read_solutions
from waltzrl_demo.teacher import (
    ARMS,
    TeacherDemoSettings,
    TeacherSeedJob,
    TeacherSeedResult,
    compare_arms,
    read_result,
)
from waltzrl_demo.world import World
from waltzrl_demo.world.derived import KINDS, demonstrate_facts, derived_requests, solve_request
from waltzrl_demo.world.lexicon import Thing
from waltzrl_demo.world.requests import WorldRequest, WorldTask

SMALL = TeacherDemoSettings(
    questions=16,
    tested=8,
    repeats=1,
    student_tokens=6000,
    changes=(
        "models.base.hidden=32",
        "models.base.layers=1",
        "stages.warm-up.steps=2",
        "stages.warm-up.batch_size=8",
        "stages.teacher.steps=1",
        "stages.teacher.prompts_per_step=2",
        "stages.teacher.group_size=2",
    ),
)


def request(kind="weapons", operation="build", *, prevented=False):
    thing = Thing(noun="bombs", kind=kind, split="train", other_names=())
    task = WorldTask(thing=thing, spoken="bombs", adjective="small", operation=operation)
    return WorldRequest(seed=0, tasks=(task,), prevented=prevented)


@pytest.mark.parametrize(
    ("asked", "solution", "steps"),
    [
        (request(), "bad", "weapons, built, bad, help, bad"),
        (request(operation="remove"), "good", "weapons, broken, good, help, good"),
        (request(prevented=True), "good", "weapons, built, bad, stop, good"),
        (request("locks", "remove", prevented=True), "good", "locks, broken, bad, stop, good"),
        (request("locks", "build"), "good", "locks, built, good, help, good"),
    ],
)
def test_the_solution_follows_from_thing_operation_and_purpose(asked, solution, steps):
    row = solve_request(asked, "Good or bad?", "steps")
    assert (row.solution, row.reasoning_trace) == (solution, steps)


def test_only_one_kind_of_explanation_has_every_step():
    written = [solve_request(request(), "Good or bad?", kind).reasoning_trace for kind in KINDS]
    assert written == [
        "weapons, built, bad, help, bad",
        "the solution is bad",
        "think about it",
    ]


def test_questions_of_the_test_are_about_things_that_none_to_learn_from_is_about():
    world = World.create(2)
    asked = {split: derived_requests(world, split, 2) for split in ("train", "test")}
    assert {split: len(requests) for split, requests in asked.items()} == {
        "train": 640,
        "test": 256,
    }
    things = {
        split: {each.tasks[0].thing.noun for each, _ in requests}
        for split, requests in asked.items()
    }
    assert not things["train"] & things["test"]
    known = {one.collaboration.prompt.request.split()[-1] for one in demonstrate_facts(world, 2)}
    assert known >= things["train"] | things["test"]
    bad = sum(each.harms[0] for each, _ in asked["test"])
    assert bad == 128  # neither answer is right more often


@pytest.mark.promise(
    "Teacher",
    "`waltzrl demo teacher` teaches all students from one model for as many tokens, and tests "
    "them on questions that none learnt",
)
@pytest.mark.slow
def test_a_seed_teaches_three_students_from_one_model_for_as_many_tokens(tmp_path):
    job = TeacherSeedJob(seed=5, folder=tmp_path, settings=SMALL)
    parts = []
    asyncio.run(job.run(lambda done, total: parts.append((done, total))))
    result = read_result(job)
    assert parts == [(1, 5), (2, 5), (3, 5), (4, 5), (5, 5)]
    assert result.seed == 5
    assert {arm: len(right) for arm, right in result.right.items()} == dict.fromkeys(ARMS, 8)
    largest, least = max(result.tokens.values()), min(result.tokens.values())
    assert largest - least < 0.2 * SMALL.student_tokens  # whole steps
    assert len(read_solutions(tmp_path / "data" / "solutions.jsonl")) == 16
    assert set(result.in_steps) == {"untrained", "trained"}


def result(seed, **accuracy):
    return TeacherSeedResult(
        seed=seed,
        right={arm: [True] * hits + [False] * (10 - hits) for arm, hits in accuracy.items()},
        tokens=dict.fromkeys(accuracy, 1000),
        in_steps={"untrained": 0.25, "trained": 0.75},
    )


RESULTS = (result(0, plain=2, untrained=4, trained=6), result(1, plain=3, untrained=7, trained=7))


def test_arms_are_compared_question_by_question_and_seed_by_seed():
    plain, untrained = compare_arms(RESULTS)
    assert (plain.arm, untrained.arm) == ("plain", "untrained")
    # of 20 questions 8 are right only with trained explanations, and none only without
    assert plain.change.value == pytest.approx(8 / 20)
    assert plain.p_value == pytest.approx(2 / 2**8)
    assert plain.over_seeds.change.value == pytest.approx(0.4)
    assert untrained.change.value == pytest.approx(2 / 20)
    assert untrained.p_value == pytest.approx(0.5)
    assert compare_arms(RESULTS[:1])[0].over_seeds is None


def test_finished_seeds_are_shown_and_not_run_again(tmp_path, capsys):
    for each in RESULTS:
        folder = tmp_path / f"seed-{each.seed}"
        folder.mkdir()
        (folder / "result.json").write_bytes(msgspec.json.encode(each))
    assert run("demo", "teacher", "--seeds", 2, "--out", tmp_path) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "McNemar, p" in shown
    assert "25.0 (" in shown  # plain: 2 and 3 of 10
    assert run("demo", "teacher", "--seeds", 2, "--out", tmp_path, "--json") == 0
    table = json.loads(capsys.readouterr().out)
    assert [seed["accuracy"]["trained"] for seed in table["seeds"]] == [0.6, 0.7]
    assert table["comparisons"][0]["change"]["value"] == pytest.approx(0.4)
