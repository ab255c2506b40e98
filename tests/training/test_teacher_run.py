"""Whole runs with a teacher: warm-up on traces, the teacher, distillation, and what goes wrong."""

import asyncio
import json

import msgspec
import pytest

from support.small_runs import run, save_recipe
from support.tiny_models import tiny_model
from waltzrl.agents.exports import CONVERSATION
from waltzrl.budget import LEDGER, read_ledger
from waltzrl.errors import InputError, RecipeError
from waltzrl.policies.compute import resolve_compute
from waltzrl.policies.weights import load_causal_lm
from waltzrl.records import Collaboration, Demonstration, Feedback, Message, Prompt, Reply, Round
from waltzrl.training.check import check_training
from waltzrl.training.checkpoints import weights_digest
from waltzrl.training.opening import export_agents, open_run, train
from waltzrl.training.recipe import load_recipe
from waltzrl.training.warm_up import WarmUp

RECIPE = """
seed = 3
use_rlt_optimization = {reviews}
[models]
base = {{ hidden = 32, layers = 1, heads = 2, context = 256 }}
layout = "{layout}"
rank = 8
[data]
{data} = ["{path}"]
[agents]
wording = "tiny"
max_new_tokens = 6
[checkpointing]
checkpoint_every = 2
kl_limit = 1e6
[compute]
device = "cpu"
threads = 1
[[stages]]
name = "warm-up"
kind = "imitation"
imitates = "traces"
steps = 60
batch_size = 4
optimizer = {{ learning_rate = 2e-2, warmup_steps = 0 }}
[[stages]]
name = "teacher"
kind = "teacher"
steps = 3
prompts_per_step = 2
group_size = 4
algorithm = {{ centre_groups = true }}
optimizer = {{ learning_rate = 1e-3, warmup_steps = 0 }}
[[stages]]
name = "distillation"
kind = "imitation"
imitates = "explanations"
steps = 4
batch_size = 2
optimizer = {{ learning_rate = 1e-3, warmup_steps = 0 }}
"""
ROWS = (
    {"question": "Two plus two?", "solution": "four", "reasoning_trace": "one more than three"},
    {"question": "Two plus one?", "solution": "three", "reasoning_trace": "one more than two"},
)


def write_solutions(folder, rows=ROWS):
    path = folder / "solutions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_demonstrations(folder):
    prompt = Prompt(id="p", messages=(Message(role="user", content="Two plus two?"),))
    said = Collaboration(prompt=prompt, draft=Reply(text="Sorry,"))
    feedback = Feedback(unsafe=False, overrefuse=True, text="Answer it.", reasoning="no harm in it")
    reviewed = Collaboration(prompt=prompt, draft=said.draft, rounds=(Round(feedback=feedback),))
    path = folder / "demonstrations.jsonl"
    lines = [msgspec.json.encode(Demonstration(collaboration=one)) for one in (said, reviewed)]
    path.write_bytes(b"\n".join(lines) + b"\n")
    return path


def recipe(folder, layout="two-models", *, reviews=False, rows=ROWS, changes=()):
    path = write_demonstrations(folder) if reviews else write_solutions(folder, rows)
    data = "demonstrations" if reviews else "solutions"
    file = folder / "recipe.toml"
    reviewed = str(reviews).lower()
    file.write_text(RECIPE.format(layout=layout, data=data, path=path, reviews=reviewed))
    return load_recipe(file, changes)


def trained(chosen, folder, report=lambda progress: None):
    team = asyncio.run(train(chosen, folder, report))
    return {role: digest(own) for role, own in team.weights.items()}


def digest(own):
    return weights_digest(own.causal_lm.model)


def explanations(folder):
    return [json.loads(line) for line in (folder / "explanations.jsonl").read_text().splitlines()]


class KilledError(Exception):
    """Stands for the end of the process."""


def killed_at(stage, step):
    def report(progress):
        if (progress.stage, progress.step) == (stage, step):
            raise KilledError

    return report


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model that knows the traces by heart, so that its explanations can be read."""
    folder = tmp_path_factory.mktemp("base")
    changes = ["stages.teacher.steps=0", "stages.distillation.steps=0"]
    team = asyncio.run(train(recipe(folder, changes=changes), folder / "run", lambda step: None))
    export_agents(team, folder / "agents")
    return f"models.base={folder / 'agents' / CONVERSATION}"


@pytest.mark.promise(
    "Teacher", "A run with a teacher that is killed ends with the weights of one that is not"
)
@pytest.mark.promise("Requirements", "RLT trainer")
@pytest.mark.slow
@pytest.mark.parametrize("layout", ["two-models", "adapters"])
def test_a_run_with_a_teacher_that_is_killed_twice_ends_with_the_same_weights(
    tmp_path, base, layout
):
    changes = [base, "stages.warm-up.steps=1", "stages.warm-up.optimizer.learning_rate=1e-4"]
    chosen = recipe(tmp_path, layout, changes=changes)
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    weights = trained(chosen, whole)
    rows = explanations(whole)
    assert [(row["question"], row["solution"]) for row in rows] == [
        (row["question"], row["solution"]) for row in ROWS
    ]
    assert any(row["reasoning_trace"] for row in rows)
    for stage in ("teacher", "distillation"):
        with pytest.raises(KilledError):
            trained(chosen, broken, killed_at(stage, 2))
    assert trained(chosen, broken) == weights
    assert explanations(broken) == rows
    opened = open_run(broken)
    assert {name: digest(own) for name, own in opened.weights.items()} == weights
    adapters = getattr(opened.weights["conversation"].causal_lm.model, "peft_config", {})
    assert "teacher" not in adapters


@pytest.mark.promise("Requirements", "RLT trainer")
def test_the_base_is_taught_what_the_teacher_wrote_and_the_teacher_is_kept_apart(tmp_path, base):
    changes = [base, "stages.warm-up.steps=0", "stages.teacher.steps=1"]
    students = [
        trained(recipe(tmp_path, changes=[*changes, f"stages.distillation.steps={steps}"]), folder)
        for steps, folder in ((0, tmp_path / "none"), (1, tmp_path / "one"))
    ]
    assert students[0] != students[1]
    charged = [
        item for charge in read_ledger(tmp_path / "one" / LEDGER).charges for item in charge.items
    ]
    read = [item.input_tokens for item in charged if item.role == "teacher"]
    assert len(read) == 2  # 8 explanations in its step, and 2 at the end
    assert read[0] == 4 * read[1]
    of_base = load_causal_lm(base.removeprefix("models.base="), "cpu").model
    assert students[0]["conversation"] == weights_digest(of_base)


def test_without_such_stages_the_roles_start_from_the_base_itself(tmp_path):
    chosen = load_recipe(save_recipe(tmp_path), ["models.layout=adapters"])
    compute, base = resolve_compute(chosen.compute), tiny_model()
    warm_up = WarmUp(recipe=chosen, folder=tmp_path, compute=compute)
    assert asyncio.run(warm_up.run(base, lambda progress: None)) is base
    assert not hasattr(base.model, "peft_config")


@pytest.mark.promise(
    "Teacher", "With `use_rlt_optimization` the teacher explains the verdicts of reviews"
)
def test_with_use_rlt_optimization_the_teacher_explains_the_verdicts_of_reviews(tmp_path):
    chosen = recipe(tmp_path, reviews=True, changes=["stages.teacher.steps=1"])
    trained(chosen, tmp_path / "run")
    (row,) = explanations(tmp_path / "run")  # the draft beside it is no review
    assert "<reply>Sorry,</reply>" in row["question"]
    assert json.loads(row["solution"]) == {
        "unsafe": False,
        "overrefuse": True,
        "feedback": "Answer it.",
    }
    assert row["reasoning_trace"]


@pytest.mark.promise(
    "Teacher", "A row without a column names file and line, and nothing is trained"
)
def test_a_row_without_a_column_is_named_with_its_file_and_line(tmp_path, capsys):
    recipe(tmp_path, rows=(ROWS[0], {"question": "Two?", "reasoning_trace": "because"}))
    out = tmp_path / "run"
    assert run("train", tmp_path / "recipe.toml", "--out", out) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path}/solutions.jsonl:2: " in error.replace("\n", "")
    assert "`solution`" in error
    assert "every row needs question and solution" in " ".join(error.split())
    assert not (out / "warm-up").exists()


@pytest.mark.promise("Teacher", "A question to explain that is held out stops the run")
def test_a_question_that_is_held_out_stops_the_run(tmp_path):
    held_out = tmp_path / "test.jsonl"
    held_out.write_text('{"prompt": "two PLUS two"}\n')
    chosen = recipe(tmp_path, changes=[f"data.held_out={[str(held_out)]}"])
    with pytest.raises(InputError, match="1 of 1 test prompts are in the training prompts"):
        trained(chosen, tmp_path / "run")


def test_a_warm_up_on_traces_needs_a_row_with_one(tmp_path):
    bare = [{"question": row["question"], "solution": row["solution"]} for row in ROWS]
    with pytest.raises(RecipeError, match=r"'warm-up' has no traces.*no row.*reasoning_trace"):
        trained(recipe(tmp_path, rows=bare), tmp_path / "run")


def test_a_teacher_needs_a_review_to_explain(tmp_path):
    chosen = recipe(tmp_path, reviews=True, changes=["stages.warm-up.steps=0"])
    draft = write_demonstrations(tmp_path).read_bytes().splitlines(keepends=True)[0]
    (tmp_path / "demonstrations.jsonl").write_bytes(draft)
    with pytest.raises(RecipeError, match=r"teacher: data\.demonstrations has no review"):
        trained(chosen, tmp_path / "run")


def test_a_teacher_that_wrote_nothing_readable_is_said(tmp_path):
    chosen = recipe(tmp_path, changes=["stages.warm-up.steps=0", "stages.teacher.steps=0"])
    with pytest.raises(
        RecipeError, match=r"'distillation' has no explanations.*explanations\.jsonl"
    ):
        trained(chosen, tmp_path / "run")


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        ((), r"data\.solutions names has changed"),
        # As where a set grows while a run learns, whose data is not compared.
        (("data.json",), "explains 2 solutions, and the data has 1 now"),
    ],
    ids=["compared", "not compared"],
)
def test_explanations_of_other_data_are_refused(tmp_path, base, unknown, said):
    changes = [base, "stages.warm-up.steps=0", "stages.teacher.steps=0"]
    chosen = recipe(tmp_path, changes=changes)
    with pytest.raises(KilledError):
        trained(chosen, tmp_path / "run", killed_at("distillation", 2))
    write_solutions(tmp_path, ROWS[:1])
    for name in unknown:
        (tmp_path / "run" / name).unlink()
    with pytest.raises(RecipeError, match=said):
        trained(chosen, tmp_path / "run")


def test_a_teacher_is_trained_by_one_process(tmp_path, monkeypatch, capsys):
    recipe(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("train", tmp_path / "recipe.toml", "--out", tmp_path / "run", "--dry-run") == 2
    assert "'teacher': a teacher is trained by one process" in " ".join(
        capsys.readouterr().err.split()
    )


def test_a_teacher_is_trained_by_one_of_rays_learners(tmp_path, capsys):
    recipe(tmp_path)
    settings = ("--set=compute.engine=ray", "--set=compute.ray.learners=2")
    assert run("train", tmp_path / "recipe.toml", *settings, "--dry-run") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "'teacher': a teacher is trained by one process, got 2; run it" in error


def test_the_plan_counts_solved_questions_and_explanations(tmp_path, capsys):
    recipe(tmp_path)
    assert (
        run("train", tmp_path / "recipe.toml", "--out", tmp_path / "run", "--dry-run", "--json")
        == 0
    )
    plan = json.loads(capsys.readouterr().out)
    stages = {stage["name"]: stage for stage in plan["stages"]}
    assert plan["solutions"] == 2
    # 3 steps of 2 questions, 4 explanations each, of 6 tokens at most
    assert (stages["teacher"]["turns"], stages["teacher"]["most_tokens"]) == (24, 144)
    assert stages["teacher"]["learns"] == ["teacher"]


def test_a_teacher_of_solutions_is_planned_where_a_set_is_missing(tmp_path):
    chosen = recipe(tmp_path, changes=["data.prompts=['nowhere.jsonl']"])
    checked = asyncio.run(check_training(chosen))
    missing = [finding.what for finding in checked.findings if finding.state == "not ready"]
    assert missing == ["data.prompts"]
    assert checked.plan.solutions == 2
