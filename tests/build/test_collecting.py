import json
import re
import time

import pytest
import typer
from typer.testing import CliRunner

from support.small_evaluations import REVISED, STOPPED, evaluation, open_memory, remember, said
from waltzrl.build import collecting
from waltzrl.build.collecting import PromptCounts, export_prompts, export_samples
from waltzrl.cli.collect import collect
from waltzrl.collector import Selection, trajectories
from waltzrl.compliance.exports import drop_rows, read_rows
from waltzrl.data import read_prompts
from waltzrl.errors import InputError
from waltzrl.memory.erasure import erase_subject, exports

NOW = time.time()
ALL = Selection(held_out_percentage=0.0)
SERVED = (
    evaluation(REVISED, id="a", time=NOW, label="correct"),
    evaluation(STOPPED, id="b", time=NOW + 1, subject="77", decision="refused"),
    evaluation(said("So.", asked="Why?"), id="c", may_learn=False),
)


@pytest.mark.parametrize("ending", ["json", "jsonl", "parquet"])
def test_what_was_served_is_written_kept_and_noted_for_whoever_erases(
    tmp_path, database_url, ending
):
    remember(database_url, SERVED)
    path = tmp_path / f"rounds.{ending}"
    done = export_samples(database_url, path, ALL)
    counted = done.counted
    assert done.left_out == {"without_consent": 1}
    assert (counted.total_interactions, counted.avg_coaching_rounds) == (2, 1.5)
    assert [row["interaction"] for row in read_rows(path)] == ["a", "a", "b"]
    expected = [one for served in SERVED[:2] for one in trajectories(served)]
    with open_memory(database_url) as memory:
        kept = memory.retrieve_dir_training_dataset(limit=10)
        assert exports(memory.store.engine) == [path.resolve()]
    assert sorted(kept, key=lambda one: (one.interaction, one.state.coaching_round)) == expected
    assert drop_rows(path, "77") == 1
    assert [row["interaction"] for row in read_rows(path)] == ["a", "a"]


def test_collecting_again_replaces_the_file_and_adds_nothing_to_the_memory(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED)
    path = tmp_path / "rounds.jsonl"
    first = export_samples(sqlite_url, path, ALL), path.read_bytes()
    assert (export_samples(sqlite_url, path, ALL), path.read_bytes()) == first
    with open_memory(sqlite_url) as memory:
        assert len(memory.retrieve_dir_training_dataset(limit=10)) == 3
        assert exports(memory.store.engine) == [path.resolve()]


def test_prompts_are_counted_by_what_is_known_of_them(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED)
    path = tmp_path / "prompts.jsonl"
    done = export_prompts(sqlite_url, path, ALL)
    assert done.counted == PromptCounts(total_prompts=1, unsafe=0, benign=1, unlabelled=0)
    assert done.left_out == {"without_consent": 1, "repeated": 1}  # and one of the two has a label
    assert [(one.id, one.label) for one in read_prompts(path)] == [("a", "benign")]


def test_what_the_memory_let_through_is_scrubbed_at_this_door(tmp_path, sqlite_url):
    asked = said("Write to ada@example.com.", *REVISED.rounds, asked="My mail is ada@example.com.")
    remember(sqlite_url, [evaluation(asked)])
    for write in (export_samples, export_prompts):
        path = tmp_path / f"{write.__name__}.json"
        write(sqlite_url, path, ALL)
        assert "[REDACTED:email]" in path.read_text()
        assert "ada@" not in path.read_text()


def test_who_is_erased_while_a_file_is_written_is_in_no_file_and_no_sample(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED)
    path = tmp_path / "rounds.jsonl"
    samples = [one for served in SERVED[:2] for one in trajectories(served)]
    with open_memory(sqlite_url) as memory:
        collecting._write(memory, path, samples, {})  # as export_samples does, to the end
        erase_subject(memory.store.engine, "77")
        for sample in samples:
            memory.store_dir_training_sample(sample)
        with pytest.raises(InputError, match="a user was erased while"):
            collecting._require_no_erasure(memory, path, samples, 0)
        kept = memory.retrieve_dir_training_dataset(limit=10)
    assert not path.exists()
    assert {one.subject for one in kept} == {"5f"}


def test_a_memory_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(InputError, match=r"memory\.db does not exist"):
        export_samples(f"sqlite:///{tmp_path}/nowhere/memory.db", tmp_path / "rounds.json", ALL)
    assert list(tmp_path.iterdir()) == []


def test_a_memory_of_nothing_to_learn_from_writes_no_file(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED[2:])
    for write in (export_samples, export_prompts):
        with pytest.raises(InputError, match="no exchange to collect, only 1 without consent;"):
            write(sqlite_url, tmp_path / "out.jsonl", ALL)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_file_that_could_not_be_written_is_not_looked_for_later(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED)
    written = tmp_path / "rounds.json"
    export_samples(sqlite_url, written, ALL)
    with pytest.raises(InputError, match="cannot write"):
        export_samples(sqlite_url, tmp_path / "none" / "rounds.json", ALL)
    with open_memory(sqlite_url) as memory:
        assert exports(memory.store.engine) == [written]


@pytest.fixture
def command():
    app = typer.Typer()
    app.command()(collect)

    def run(*arguments):
        return CliRunner().invoke(app, [str(one) for one in arguments])

    return run


def test_the_command_prints_statistics_for_people_and_programs(tmp_path, sqlite_url, command):
    remember(sqlite_url, SERVED)
    out = tmp_path / "rounds.jsonl"
    done = command(out, "--memory", sqlite_url, "--held-out", "0")
    assert done.exit_code == 0
    assert re.search(r"total_interactions +│ +2 ", done.stdout)
    assert re.search(r"left out: without consent +│ +1 ", done.stdout)
    assert re.search(r"avg_dir_score +│ +0\.333 ", done.stdout)  # (0.44 + 0 + 0.56) / 3
    found = json.loads(command(out, "--memory", sqlite_url, "--held-out", "0", "--json").stdout)
    assert found["file"] == str(out)
    assert (found["safe_rate"], found["left_out"]) == (1.0, {"without_consent": 1})
    prompts = command(out, "--memory", sqlite_url, "--held-out", "0", "--prompts", "--json")
    assert json.loads(prompts.stdout)["benign"] == 1
    assert command(out, "--memory", sqlite_url, "--held-out", "101").exit_code == 2
