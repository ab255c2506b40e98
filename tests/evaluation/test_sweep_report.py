import json

import pytest

from waltzrl.evaluation.sweep_report import (
    SweepResult,
    read_validations,
    sort_by_best,
    write_sweep_report,
)


def validation(step, f1):
    return {"step": step, "validation/f1": f1, "validation/asr": 0.1, "validation/orr": 1 - f1}


def point(kl, seed, *curve, diverged=""):
    setting = f"kl_weight={kl}"
    return SweepResult(
        name=f"{setting},seed={seed}",
        setting=setting,
        values={"kl_weight": kl, "seed": seed},
        run=f"runs/{setting},seed={seed}",
        curve=curve,
        diverged=diverged,
    )


RESULTS = [
    point(0.02, 0, validation(0, 0.25), validation(10, 0.5), validation(20, 0.5)),
    point(0.02, 1, diverged="step 3: kl/feedback_nats is 9"),
    point(0.05, 0, validation(0, 0.25), validation(10, 0.75), validation(20, 0.125)),
]


def test_the_best_point_comes_first_and_one_without_a_validation_last():
    assert [result.name for result in sort_by_best(RESULTS)] == [
        *("kl_weight=0.05,seed=0", "kl_weight=0.02,seed=0", "kl_weight=0.02,seed=1")
    ]


def test_of_equal_validations_the_latest_is_the_best_as_in_the_export():
    assert RESULTS[0].best["step"] == 20
    assert RESULTS[2].best["step"] == 10
    assert RESULTS[2].last["validation/f1"] == 0.125
    assert (RESULTS[1].best, RESULTS[1].last) == (None, None)


@pytest.mark.slow
@pytest.mark.promise(
    "Evaluation",
    "A sweep trains every combination of its values, resumes, trains only what more values add, "
    "and compares the points on the validation set",
)
def test_the_page_has_every_points_values_rates_and_curves(tmp_path):
    page = write_sweep_report(tmp_path, RESULTS, "Sweep of tiny")
    text = page.read_text()
    assert text.index("<th>0.05</th>") < text.index("<th>0.02</th>")  # the best first
    assert "<td>10</td>" in text  # its step
    assert "<td>75.0</td>" in text
    assert "<td>12.5</td>" in text  # after the last step
    assert "step 3: kl/feedback_nats is 9" in text
    assert text.count("<svg") == 2
    assert {"points.png", "curves.png"} < {path.name for path in tmp_path.iterdir()}


def test_only_validations_are_read_of_a_run(tmp_path):
    lines = [
        {"step": 0, "validation/f1": 0.5, "validation/asr": 0.25, "rate/asr": 0.9},
        {"step": 1, "rate/asr": 0.9},
        {"step": 2, "validation/orr": None, "validation/asr": 0.125},
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_validations(tmp_path) == [
        {"step": 0, "validation/f1": 0.5, "validation/asr": 0.25},
        {"step": 2, "validation/asr": 0.125},
    ]
    assert read_validations(tmp_path / "not begun") == []
