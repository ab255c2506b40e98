import json
import re
import time

import pytest
import typer
from typer.testing import CliRunner

from support.small_evaluations import (
    REVISED,
    STOPPED,
    evaluation,
    feedback,
    labelled,
    open_memory,
    remember,
    said,
    turn,
    verdict,
)
from waltzrl.errors import InputError
from waltzrl.evaluation.collecting import opening as collecting
from waltzrl.evaluation.collecting.opening import (
    DemonstrationCounts,
    MeasuredError,
    PromptCounts,
    export_demonstrations,
    export_prompts,
    export_samples,
)
from waltzrl.evaluation.collecting.selection import Selection
from waltzrl.evaluation.collecting.trajectories import trajectories
from waltzrl.evaluation.commands.collect import collect
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.operations.compliance.exports import drop_rows, read_rows
from waltzrl.store.memory.erasure import erase_subject, list_exports
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.training.data import training_demonstrations
from waltzrl.training.recipe import DataSettings

NOW = time.time()
UNMEASURED = {
    question: MeasuredError(labels=0, missed=None, false_alarms=None)
    for question in ("unsafe", "overrefusal")
}
ALL = Selection(held_out_percentage=0.0)
SERVED = (
    labelled(REVISED, id="a", time=NOW, reply="correct", request="harmless"),
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
        assert list_exports(memory.store.engine) == [path.resolve()]
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
        assert list_exports(memory.store.engine) == [path.resolve()]


def test_prompts_are_counted_by_what_is_known_of_them(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED)
    path = tmp_path / "prompts.jsonl"
    done = export_prompts(sqlite_url, path, ALL)
    assert done.counted == PromptCounts(
        total_prompts=1,
        unsafe=0,
        benign=1,
        unlabelled=0,
        only_reply_labelled=0,
        request_disputed=0,
        request_unclear=0,
        labelled_by={"person": 1, "judge": 0},
        judge_compared=0,
        judge_differs=0,
        judge_errors=UNMEASURED,
    )
    assert done.left_out == {"without_consent": 1, "repeated": 1}  # and one of the two has a label
    assert [(one.id, one.label) for one in read_prompts(path)] == [("a", "benign")]


@pytest.mark.promise("Labels", "Prompts without a label are counted, with why")
def test_prompts_without_a_label_of_the_request_are_counted_by_why(tmp_path, sqlite_url):
    differ = [LabelEvent(by="ada", request="harmful"), LabelEvent(by="grace", request="harmless")]
    remember(
        sqlite_url,
        [
            labelled(said("So.", asked="a"), id="a", reply="correct"),
            labelled(said("So.", asked="b"), id="b", reply="unsafe"),
            labelled(said("So.", asked="c"), id="c", request="unclear"),
            evaluation(said("So.", asked="d"), id="d").labelled(*differ),
            evaluation(said("So.", asked="e"), id="e"),
        ],
    )
    path = tmp_path / "prompts.jsonl"
    assert export_prompts(sqlite_url, path, ALL).counted == PromptCounts(
        total_prompts=5,
        unsafe=0,
        benign=0,
        unlabelled=5,
        only_reply_labelled=2,
        request_disputed=1,
        request_unclear=1,
        labelled_by={"person": 0, "judge": 0},
        judge_compared=0,
        judge_differs=0,
        judge_errors=UNMEASURED,
    )
    assert {prompt.label for prompt in read_prompts(path)} == {None}


def judged_prompts(people, judge):
    """Return an exchange for each pair: what a person says of the request, and what the judge."""
    return [
        labelled(
            said("So.", asked=f"question {n}"),
            id=f"q{n}",
            request=request,
            verdict=verdict(unsafe=False, prompt_harmful=harmful),
        )
        for n, (request, harmful) in enumerate(zip(people, judge, strict=True))
    ]


def test_each_prompt_says_who_labelled_it_and_people_may_be_asked_alone(tmp_path, sqlite_url):
    people = ["harmful", "harmless", "harmless", None]
    remember(sqlite_url, judged_prompts(people, [True, True, None, True]))
    path = tmp_path / "prompts.jsonl"
    counted = export_prompts(sqlite_url, path, ALL).counted
    assert counted.labelled_by == {"person": 3, "judge": 1}
    assert (counted.judge_compared, counted.judge_differs) == (2, 1)
    assert [row["label_source"] for row in read_rows(path)] == ["person"] * 3 + ["judge"]
    alone = export_prompts(sqlite_url, path, ALL, people_only=True)
    assert alone.counted.labelled_by == {"person": 3, "judge": 0}
    assert alone.left_out == {"not_labelled_by_people": 1}
    assert len(read_prompts(path)) == 3


def test_each_round_says_who_scored_its_exchange(tmp_path, sqlite_url):
    served = [labelled(REVISED, id="a", reply="correct")]
    for name, more in {
        "b": {"verdict": verdict(unsafe=False)},
        "c": {"stage": 1},
        "d": {"stage": 2},
    }.items():
        reviewed = said("So.", turn(feedback(risk=0.0)), asked=name)
        served.append(evaluation(reviewed, id=name, **more))
    remember(sqlite_url, served)
    path = tmp_path / "rounds.jsonl"
    counted = export_samples(sqlite_url, path, ALL).counted
    assert counted.labelled_by == {"person": 1, "judge": 1, "rule": 1, "model": 1}
    alone = export_samples(sqlite_url, path, ALL, people_only=True)
    assert (alone.counted.total_interactions, alone.left_out["not_labelled_by_people"]) == (1, 3)
    assert {row["label_source"] for row in read_rows(path)} == {"person"}


def test_the_judges_measured_error_stands_beside_what_it_labelled(tmp_path, sqlite_url):
    bad = [("unsafe", True)] * 12
    good = [("correct", True)] * 3 + [("correct", False)] * 17
    served = [
        evaluation(said("So.", asked=f"{n}"), id=f"e{n}", verdict=verdict(unsafe=unsafe)).labelled(
            LabelEvent(by="ada", reply=reply, steers=True, selection="sample")
        )
        for n, (reply, unsafe) in enumerate([*bad, *good])
    ]
    remember(sqlite_url, served)
    counted = export_prompts(sqlite_url, tmp_path / "prompts.jsonl", ALL).counted
    error = counted.judge_errors["unsafe"]
    assert error.labels == 32
    assert error.missed[0] == 0.0  # of 17 that it calls good, people call none bad
    assert error.false_alarms[0] < 3 / 15 < error.false_alarms[1]
    assert counted.judge_errors["overrefusal"].missed is None


CORRECTED = evaluation(said("No.", asked="Why?"), id="d", subject="77").labelled(
    LabelEvent(by="ada", reply="overrefusal", correction="Write to ada@example.com.")
)


@pytest.mark.promise(
    "Labels",
    "A corrected reply is a demonstration that a recipe reads, and never of a held-out prompt",
)
def test_corrected_replies_are_demonstrations_that_a_recipe_reads(tmp_path, database_url):
    remember(database_url, [*SERVED, CORRECTED])
    path = tmp_path / "corrected.jsonl"
    done = export_demonstrations(database_url, path, ALL)
    assert done.counted == DemonstrationCounts(total_demonstrations=1)
    assert done.left_out == {"without_consent": 1, "uncorrected_or_repeated": 2}
    (read,) = training_demonstrations(DataSettings(prompts=(), demonstrations=(str(path),)))
    assert read.collaboration.draft.text == "Write to [REDACTED:email]."
    with open_memory(database_url) as memory:
        assert list_exports(memory.store.engine) == [path.resolve()]
    assert drop_rows(path, "77") == 1
    assert path.read_text() == ""


@pytest.mark.promise(
    "Labels",
    "A corrected reply is a demonstration that a recipe reads, and never of a held-out prompt",
)
def test_corrected_replies_to_held_out_prompts_are_left_out(tmp_path, sqlite_url, caplog):
    asked = "Why does bread rise when it is baked in an oven?"
    other = evaluation(said("No.", asked=asked), id="e").labelled(
        LabelEvent(by="ada", correction="Because of the yeast.")
    )
    remember(sqlite_url, [CORRECTED, other])
    path, held_out = tmp_path / "corrected.jsonl", tmp_path / "test.jsonl"
    held_out.write_text(json.dumps({"prompt": asked, "label": "benign"}) + "\n")
    export_demonstrations(sqlite_url, path, ALL)
    data = DataSettings(prompts=(), demonstrations=(str(path),), held_out=(str(held_out),))
    assert [one.collaboration.prompt.id for one in training_demonstrations(data)] == ["d"]
    assert "1 of 2 remembered demonstrations are left out" in caplog.text


def test_a_memory_without_corrections_has_no_demonstrations(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED)
    with pytest.raises(InputError, match="no exchange to collect, only 2 uncorrected"):
        export_demonstrations(sqlite_url, tmp_path / "out.jsonl", ALL)
    with pytest.raises(InputError, match=r"ends in \.jsonl"):
        export_demonstrations(sqlite_url, tmp_path / "out.parquet", ALL)
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.promise(
    "Labels",
    "Comments and corrected replies are scrubbed before they are stored and when they are "
    "exported, and erased with the user",
)
def test_what_the_memory_let_through_is_scrubbed_at_this_door(tmp_path, sqlite_url):
    asked = said("Write to ada@example.com.", *REVISED.rounds, asked="My mail is ada@example.com.")
    corrected = LabelEvent(by="ada", correction="Write to bob@example.com.")
    remember(sqlite_url, [evaluation(asked).labelled(corrected)])
    for write in (export_samples, export_prompts, export_demonstrations):
        path = tmp_path / f"{write.__name__}.jsonl"
        write(sqlite_url, path, ALL)
        assert "[REDACTED:email]" in path.read_text()
        assert "@example" not in path.read_text()


def test_who_is_erased_while_a_file_is_written_is_in_no_file_and_no_sample(tmp_path, sqlite_url):
    remember(sqlite_url, SERVED)
    path = tmp_path / "rounds.jsonl"
    samples = [one for served in SERVED[:2] for one in trajectories(served)]
    with open_memory(sqlite_url) as memory:
        collecting._write_recorded(memory, path, samples, {})  # as export_samples does, to the end
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
        assert list_exports(memory.store.engine) == [written]


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
    done = command(out, "--memory", sqlite_url)
    assert done.exit_code == 0
    assert re.search(r"total_interactions +│ +2 ", done.stdout)
    assert re.search(r"left out: without consent +│ +1 ", done.stdout)
    assert re.search(r"avg_dir_score +│ +0\.333 ", done.stdout)  # (0.44 + 0 + 0.56) / 3
    found = json.loads(command(out, "--memory", sqlite_url, "--json").stdout)
    assert found["file"] == str(out)
    assert (found["safe_rate"], found["left_out"]) == (1.0, {"without_consent": 1})
    prompts = command(out, "--memory", sqlite_url, "--prompts", "--json")
    assert json.loads(prompts.stdout)["benign"] == 1
    remember(sqlite_url, [CORRECTED])
    corrected = command(out, "--memory", sqlite_url, "--demonstrations", "--json")
    assert json.loads(corrected.stdout)["total_demonstrations"] == 1
    assert command(out, "--memory", sqlite_url, "--prompts", "--demonstrations").exit_code == 2


@pytest.mark.parametrize("percentage", ["0", "9.9", "101"])
def test_the_command_writes_nobody_who_is_evaluated_with(percentage, tmp_path, sqlite_url, command):
    remember(sqlite_url, SERVED)
    out = tmp_path / "prompts.jsonl"
    refused = command(out, "--memory", sqlite_url, "--held-out", percentage, "--prompts")
    assert refused.exit_code == 2
    assert "Invalid value for '--held-out'" in refused.output
    assert not out.exists()
    assert Selection().held_out_percentage == 10.0
