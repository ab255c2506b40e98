import json

import pytest

from support.small_runs import run, save_recipe, save_validation

KL = "stages.joint.algorithm.kl_weight"


def learned(folder):
    """Return the metrics of each step without its times."""
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


@pytest.mark.promise(
    "Evaluation",
    "A sweep trains every combination of its values, resumes, trains only what more values add, "
    "and compares the points on the validation set",
)
@pytest.mark.slow
def test_a_sweep_trains_what_is_missing_and_compares_the_points(tmp_path, capsys):
    recipe, out = save_recipe(tmp_path), tmp_path / "sweep"
    validation = save_validation(tmp_path / "validation.jsonl")
    settings = (f'data.validation=["{validation}"]', "stages.feedback.steps=1")
    settings += ("stages.joint.steps=1", "agents.max_new_tokens=4")
    options = [option for setting in settings for option in ("--set", setting)]
    trained = out / "kl_weight=0.02"
    assert run("train", recipe, *options, "--set", f"{KL}=0.02", "--out", trained, "--json") == 0
    before = learned(trained)
    checkpoint = trained / "checkpoints" / "step-000002" / "MANIFEST.json"
    saved = checkpoint.stat().st_mtime_ns
    capsys.readouterr()

    assert run("sweep", recipe, *options, "--over", f"{KL}=0.02,0.05", "--out", out, "--json") == 0
    points = {point["point"]: point for point in json.loads(capsys.readouterr().out)}
    assert points.keys() == {"kl_weight=0.02", "kl_weight=0.05"}
    assert [point["last"]["step"] for point in points.values()] == [2, 2]
    assert points["kl_weight=0.05"]["values"] == {KL: 0.05}
    assert points["kl_weight=0.02"]["run"] == str(trained)
    assert learned(trained) == before
    assert checkpoint.stat().st_mtime_ns == saved  # nothing was trained again
    text = (out / "report.html").read_text()
    assert "<th>0.02</th>" in text
    assert "<th>0.05</th>" in text


def test_an_unknown_key_is_one_line(tmp_path, capsys):
    assert run("sweep", save_recipe(tmp_path), "--over", "sed=1,2", "--out", tmp_path / "out") == 2
    line = capsys.readouterr().err
    assert line.endswith("unknown key 'sed'; did you mean 'seed'?\n")
    assert not (tmp_path / "out").exists()
