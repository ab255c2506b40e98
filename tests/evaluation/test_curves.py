import pytest

from waltzrl.errors import InputError
from waltzrl.evaluation.curves import read_curve


def test_what_was_not_finite_leaves_a_gap_in_its_curve(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 3, "rate/asr": null, "rate/orr": 0.5}\n')
    assert read_curve(tmp_path) == [{"step": 3, "orr": 0.5}]


def test_a_line_that_holds_no_numbers_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step": "one"}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: not a step's metrics"):
        read_curve(tmp_path)
