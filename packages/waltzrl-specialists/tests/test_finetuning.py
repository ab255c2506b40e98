import asyncio
import json
import shutil
from dataclasses import replace

import msgspec
import pytest

from support.small_runs import run
from support.tiny_models import tiny_model
from support.tiny_specialists import TASK, draft, settings, train, write_set
from waltzrl.errors import InputError, RecipeError
from waltzrl_specialists import estimate_cost, finetune, integrate_with_agent, prepare_dataset
from waltzrl_specialists.agents import open_specialists
from waltzrl_specialists.datasets import join_datasets
from waltzrl_specialists.evaluation import (
    CheckedReply,
    SpecialistResult,
    add_results,
    evaluate,
    share_passed,
)

FINE_TUNER = pytest.mark.promise(
    "Requirements",
    "nanochat fine-tuner: prepare_dataset, estimate_cost, finetune, integrate_with_agent; fifteen "
    "agents",
)


def adapters(folder):
    return [
        (folder / name / "adapter" / "adapter_model.safetensors").read_bytes()
        for name in ("heavy", "light")
    ]


@FINE_TUNER
def test_each_specialist_learns_its_own_lines_and_the_base_knows_none(trained):
    folder, _ = trained
    measured = []
    results = asyncio.run(evaluate(folder, [], measured.append))
    assert measured == ["heavy", "light"]
    shares = [(one.name, share_passed(one.base).value) for one in results]
    assert shares == [("heavy", 0.0), ("light", 0.0)]
    assert all(share_passed(one.specialist).value >= 0.5 for one in results)  # of two scenarios
    assert len(add_results(results).specialist) == 4


@pytest.mark.promise("Specialists", "Many adapters on one base say what each says alone")
def test_many_adapters_on_one_base_say_what_each_says_alone(trained):
    folder, _ = trained
    agents = open_specialists(folder).agents
    assert agents["heavy"].policy.model is agents["light"].policy.model
    together = [draft(agents[name], "fox?") for name in ("heavy", "light", "heavy")]
    alone = [draft(integrate_with_agent(name, folder), "fox?") for name in ("heavy", "light")]
    assert together == [*alone, alone[0]] == ["Weight: tons\nok", "Weight: grams\nok", alone[0]]


def test_progress_is_counted_over_all_specialists(trained):
    _, steps = trained
    assert [(step.stage, step.step, step.total) for step in (steps[0], steps[-1])] == [
        ("heavy", 0, 120),
        ("light", 119, 120),
    ]


@pytest.mark.promise(
    "Specialists",
    "A training that was killed and run again leaves the same adapters, and finished specialists "
    "are not trained again",
)
def test_killed_in_the_second_and_run_again_the_adapters_are_the_same(
    base, sets, trained, tmp_path
):
    def kill(step):
        if step.step == 95:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, base, sets, kill)
    again = []
    train(tmp_path, base, sets, again.append)
    assert [(step.stage, step.step) for step in (again[0], again[-1])] == [
        ("light", 95),  # its step 35; before it an epoch of five steps was over
        ("light", 119),
    ]
    assert adapters(tmp_path) == adapters(trained[0])


@pytest.mark.promise("Specialists", "Other settings or rows do not continue a training")
def test_other_settings_or_rows_do_not_continue_a_training(base, sets, trained, tmp_path):
    folder, _ = trained
    with pytest.raises(RecipeError, match="heavy was begun with another rank; choose another"):
        train(folder, base, sets, print, rank=2)
    other = write_set(tmp_path / "other", "heavy", "pounds")
    with pytest.raises(RecipeError, match="heavy was begun with another data_sha256"):
        train(folder, base, [other], print)


def test_a_specialist_that_was_not_trained_is_named(trained):
    folder, _ = trained
    with pytest.raises(InputError, match="has heavy, light, need qa; run waltzrl specialists"):
        integrate_with_agent("qa", folder)


def test_specialists_of_two_bases_are_refused(trained, tmp_path):
    folder, _ = trained
    for name, base in (("heavy", "one"), ("light", "two")):
        (tmp_path / name / "adapter").mkdir(parents=True)
        told = json.loads((folder / name / "specialist.json").read_bytes()) | {"base": base}
        (tmp_path / name / "specialist.json").write_text(json.dumps(told))
    with pytest.raises(InputError, match="heavy was trained on one, light on two"):
        open_specialists(tmp_path)


@FINE_TUNER
def test_the_cost_is_counted_in_steps_and_tokens_and_measured_in_minutes(base, sets):
    (estimate,) = asyncio.run(estimate_cost([prepare_dataset(sets[0], TASK)], settings(base)))
    assert estimate.steps == 60  # 12 epochs of 10 rows, 2 a step
    tokenizer = tiny_model().tokenizer
    rendered = f"<|system|>{TASK}<|end|><|user|>ape?<|end|><|assistant|>Weight: tons\nok<|end|>"
    row = len(tokenizer(rendered, add_special_tokens=False)["input_ids"])  # all rows are alike
    assert estimate.tokens == pytest.approx(120 * row, rel=0.1)
    assert estimate.minutes > 0


def test_the_gain_counts_pairs_and_failures_are_counted_by_check():
    right, wrong = CheckedReply(text="", problems={}), CheckedReply(text="", problems={"json": "?"})
    result = SpecialistResult(
        name="billing",
        base=[right, right, right, *[wrong] * 15],
        together=[],
        specialist=[right, right, wrong, *[right] * 12, *[wrong] * 3],
    )
    assert share_passed(result.base).value == 3 / 18
    assert share_passed(result.specialist).value == 14 / 18
    assert result.gain.value == pytest.approx(11 / 18)
    assert result.gain_over_together is None
    assert result.failures == {"json": 4}


@pytest.mark.promise(
    "Specialists", "One adapter that learnt all rows is what each is compared with"
)
def test_one_adapter_learns_all_rows_under_the_system_prompt_of_each(base, sets, trained, tmp_path):
    folder = shutil.copytree(trained[0], tmp_path / "folder")
    heavy, light = (prepare_dataset(name, TASK) for name in sets)
    other = msgspec.structs.replace(light.specialist, task="Weigh a small thing.")
    joint = join_datasets([heavy, replace(light, specialist=other)])
    assert [example.system for example in joint.examples] == [TASK] * 10 + [other.system] * 10
    short = replace(settings(base), epochs=1)
    asyncio.run(finetune([join_datasets([heavy, light])], folder, short, print))
    results = asyncio.run(evaluate(folder, [], print))
    assert [(one.name, len(one.together)) for one in results] == [("heavy", 2), ("light", 2)]
    # Both have one prompt, so it cannot know which of the two lines is wanted.
    (first, second) = ([reply.text for reply in one.together] for one in results)
    assert first == second
    assert add_results(results).gain_over_together.n == 4
    assert list(open_specialists(folder).agents) == ["heavy", "light"]
    agents = json.loads((folder / "agents.json").read_bytes())["agents"]
    assert [agent["agent_name"] for agent in agents] == ["heavy", "light"]


def test_the_commands_train_measure_and_tell(base, sets, trained, tmp_path, capsys):
    to = ("--out", tmp_path / "out", "--json")
    options = ("--base", base, "--epochs", "1", "--task", TASK)
    assert run("specialists", "train", *sets, *options, *to) == 0
    assert json.loads(capsys.readouterr().out)["heavy"].endswith("out/heavy/adapter")
    assert run("specialists", "evaluate", "--out", trained[0], "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert {name: told[name]["specialist"]["n"] for name in told} == {
        "heavy": 2,
        "light": 2,
        "all": 4,
    }
    assert run("specialists", "train", sets[0], *options, *to, "--dry-run") == 0
    assert json.loads(capsys.readouterr().out)["heavy"]["steps"] == 3  # 10 rows, 4 a step
    assert run("specialists", "evaluate", "qa", *to) == 2
    assert "need qa" in capsys.readouterr().err
