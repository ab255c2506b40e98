import json

import msgspec
import pytest
from pyarrow import parquet

from support.small_evaluations import REVISED, STOPPED, evaluation, labelled, said
from waltzrl.errors import InputError
from waltzrl.evaluation.collecting.export import export
from waltzrl.evaluation.collecting.selection import Selection, labelled_prompts, prompts_of
from waltzrl.evaluation.collecting.trajectories import trajectories
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.store.memory.schemas import TrainingSample

ALL = Selection(held_out_percentage=0.0)
SERVED = [
    labelled(REVISED, id="a", reply="correct", request="harmless"),
    evaluation(said("So.", asked="Why?"), id="c", subject="77", verdict=None),
]
PROMPTS = [prompt.row for prompt in labelled_prompts(SERVED, ALL)]
SAMPLES = [
    *trajectories(evaluation(REVISED, id="a")),
    *trajectories(evaluation(STOPPED, id="b", subject="77", decision="refused")),
]


def read_back(path):
    match path.suffix:
        case ".json":
            return json.loads(path.read_text())
        case ".jsonl":
            return [json.loads(line) for line in path.read_text().splitlines()]
        case _:
            return parquet.read_table(path).to_pylist()


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
@pytest.mark.parametrize("rows", [SAMPLES, PROMPTS], ids=["samples", "prompts"])
def test_every_row_comes_back_as_it_was_and_names_its_subject(tmp_path, ending, rows):
    path = tmp_path / f"out.{ending}"
    export(path, rows)
    found = read_back(path)
    assert {row["subject"] for row in found} == {"5f", "77"}
    assert [msgspec.convert(row, type(rows[0])) for row in found] == rows


def test_a_column_has_its_type_also_where_every_row_is_empty(tmp_path):
    path = tmp_path / "out.parquet"
    export(path, SAMPLES[-1:])  # terminal, without context and without a risk
    found = parquet.read_schema(path)
    assert str(found.field("state").type.field("context").type.value_type) == "string"
    assert str(found.field("action").type.field("risk_score").type) == "double"
    assert found.field("next_state").type == found.field("state").type
    assert found.names == list(TrainingSample.__struct_fields__)


def test_exported_prompts_are_read_as_prompts_of_the_memory(tmp_path):
    path = tmp_path / "prompts.jsonl"
    export(path, PROMPTS)
    assert read_prompts(path) == prompts_of(SERVED, ALL)
    assert [prompt.source for prompt in read_prompts(path)] == ["memory", "memory"]


def test_a_file_of_another_kind_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"ends in \.json, \.jsonl or \.parquet"):
        export(tmp_path / "out.csv", SAMPLES)


def test_an_export_that_cannot_be_written_leaves_nothing_behind(tmp_path):
    with pytest.raises(InputError, match="cannot write"):
        export(tmp_path / "nowhere" / "out.jsonl", SAMPLES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.promise("Legal duties", "GDPR 32: security")
def test_an_export_is_its_owners_only(tmp_path):
    export(tmp_path / "rows.jsonl", SAMPLES)
    assert (tmp_path / "rows.jsonl").stat().st_mode & 0o777 == 0o600
