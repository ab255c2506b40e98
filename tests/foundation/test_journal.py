import json
import math
import os
import resource
import subprocess
import sys
from itertools import groupby

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from support.wandb_records import read_records
from waltzrl.errors import InputError
from waltzrl.foundation.journal import Journal, WandbProject

PROJECT = WandbProject(name="small", config={"seed": 3, "models": {"rank": 2}})


def record(folder, steps, resumed_step=-1, wandb=None):
    with Journal(folder, resumed_step, wandb) as journal:
        for step in steps:
            journal.write(step, {"reward/feedback_mean": step / 4, "kl/feedback_nats": 0.5})


def lines(folder):
    return (folder / "metrics.jsonl").read_text().splitlines()


def test_each_step_is_one_line(tmp_path):
    record(tmp_path, [1])
    expected = '{"step": 1, "reward/feedback_mean": 0.25, "kl/feedback_nats": 0.5}'
    assert lines(tmp_path) == [expected]


def test_a_step_can_be_read_at_once(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write(1, {"time/step_seconds": 2.0})
        assert len(lines(tmp_path)) == 1


def test_a_killed_and_resumed_run_has_the_file_of_an_uninterrupted_one(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir(), killed.mkdir()
    record(whole, range(1, 9))
    record(killed, range(1, 6))
    with (killed / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "rewa')  # killed in the middle of a line
    record(killed, range(4, 9), resumed_step=3)
    assert lines(killed) == lines(whole)


def test_resuming_after_the_last_line_drops_a_half_one_only(tmp_path):
    record(tmp_path, [1, 2])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3')
    record(tmp_path, [3], resumed_step=2)
    assert [json.loads(line)["step"] for line in lines(tmp_path)] == [1, 2, 3]


def test_a_fresh_start_forgets_an_earlier_run(tmp_path):
    record(tmp_path, [0, 1, 2])
    record(tmp_path, [0])
    assert len(lines(tmp_path)) == 1


def test_a_number_that_is_not_finite_is_null(tmp_path):
    with Journal(tmp_path) as journal:
        journal.write(1, {"loss/feedback_mean": math.nan, "kl/feedback_nats": math.inf})
    assert json.loads(lines(tmp_path)[0]) == {
        "step": 1,
        "loss/feedback_mean": None,
        "kl/feedback_nats": None,
    }


@pytest.mark.parametrize("name", ["loss", "Reward/mean", "time/", "a b/c"])
def test_a_metric_without_a_path_is_refused(tmp_path, name):
    with Journal(tmp_path) as journal, pytest.raises(ValueError, match="time/step_seconds"):
        journal.write(1, {name: 1.0})


@pytest.mark.parametrize("line", ["nonsense", "[]", '{"loss": 1}', '{"step": "2"}'])
def test_a_damaged_line_is_named(tmp_path, line):
    (tmp_path / "metrics.jsonl").write_text(f'{{"step": 1}}\n{line}\n{{"step": 3}}\n')
    with pytest.raises(InputError, match=r"metrics\.jsonl:2: need a JSON object with"):
        Journal(tmp_path, resumed_step=3)


def test_a_journal_that_cannot_be_written_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"cannot write .*metrics\.jsonl: No such file"):
        Journal(tmp_path / "nowhere")


def test_a_full_disk_is_one_line(tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    journal = Journal(tmp_path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
    try:
        with pytest.raises(InputError, match=r"metrics\.jsonl: File too large; free space"):
            journal.write(1, {"time/step_seconds": 1.0})
        with pytest.raises(InputError, match=r"metrics\.jsonl: File too large; free space"):
            journal.__exit__()  # which tries to write the line again
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_tensorboard_shows_the_same_numbers_and_forgets_the_steps_run_twice(tmp_path):
    for first in range(1, 13):  # restarts within one second are read in their order too
        record(tmp_path, [first, first + 1, first + 2], resumed_step=first - 1)
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    seen = [(event.step, event.value) for event in events.Scalars("reward/feedback_mean")]
    assert seen == [(step, step / 4) for step in range(1, 15)]


def test_telemetry_needs_neither_torch_nor_tensorboard(tmp_path):
    script = (
        "import sys; sys.modules['tensorboard'] = None\n"
        "from pathlib import Path\n"
        "from waltzrl.foundation.journal import Journal\n"
        "with Journal(Path(sys.argv[1])) as journal: journal.write(1, {'time/step_seconds': 1})\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=os.environ)
    assert len(lines(tmp_path)) == 1


@pytest.fixture
def offline(monkeypatch):
    import wandb  # slow to import

    wandb.teardown()  # it reads the environment when it starts
    monkeypatch.setenv("WANDB_MODE", "offline")
    yield
    wandb.teardown()


def wandb_runs(folder):
    """Return the records of each run on W&B, in the order of the processes that wrote them."""
    import wandb

    wandb.teardown()  # which writes the last of them
    files = (folder / "wandb").glob("offline-run-*/*.wandb")
    ordered = sorted(files, key=lambda file: file.stat().st_mtime_ns)
    runs = groupby(ordered, key=lambda file: file.stem)
    return [[one for file in own for one in read_records(file)] for _, own in runs]


def logged(records):
    """Return the steps with their metrics."""
    rows = [one.history for one in records if one.WhichOneof("record_type") == "history"]
    return [
        (row.step.num, {"/".join(i.nested_key): json.loads(i.value_json) for i in row.item})
        for row in rows
    ]


@pytest.mark.promise(
    "Training",
    "A resumed run goes on as the same run of Weights & Biases, which has every step once; without "
    "a network its files are kept, and no failure of it stops a training",
)
@pytest.mark.promise("Requirements", "checkpoints at any URL, and Weights & Biases")
@pytest.mark.slow
def test_a_resumed_run_is_one_run_on_wandb_with_every_step_once(tmp_path, offline):
    record(tmp_path, range(4), wandb=PROJECT)
    record(tmp_path, range(2, 6), resumed_step=1, wandb=PROJECT)  # 2 and 3 run again
    (records,) = wandb_runs(tmp_path)
    steps = logged(records)
    assert [step for step, _ in steps] == list(range(6))
    assert all(row["reward/feedback_mean"] == step / 4 for step, row in steps)
    first, second = (one.run for one in records if one.WhichOneof("record_type") == "run")
    assert (first.project, first.display_name) == ("small", str(tmp_path))
    assert first.run_id == second.run_id == (tmp_path / "wandb-id").read_text()
    config = {item.key: json.loads(item.value_json) for item in first.config.update}
    assert (config["seed"], config["models"]) == (3, {"rank": 2})


@pytest.mark.slow
def test_a_run_that_starts_anew_is_another_one_on_wandb(tmp_path, offline):
    record(tmp_path, range(3), wandb=PROJECT)
    record(tmp_path, range(2), wandb=PROJECT)
    steps = [[step for step, _ in logged(run)] for run in wandb_runs(tmp_path)]
    assert steps == [[0, 1, 2], [0, 1]]


@pytest.mark.promise(
    "Training",
    "A resumed run goes on as the same run of Weights & Biases, which has every step once; without "
    "a network its files are kept, and no failure of it stops a training",
)
@pytest.mark.slow
def test_a_server_of_wandb_that_is_away_leaves_an_offline_run(
    tmp_path, offline, monkeypatch, caplog
):
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    record(tmp_path, range(2), wandb=PROJECT)
    (warning,) = (one.message for one in caplog.records if one.name == "waltzrl.foundation.journal")
    assert warning.startswith("W&B: ")
    remedy = f"`wandb sync {tmp_path}/wandb/offline-run-*` uploads it"
    assert warning.endswith(f"; logging offline; {remedy}")
    assert [[step for step, _ in logged(run)] for run in wandb_runs(tmp_path)] == [[0, 1]]
    assert len(lines(tmp_path)) == 2


@pytest.mark.promise(
    "Training",
    "A resumed run goes on as the same run of Weights & Biases, which has every step once; without "
    "a network its files are kept, and no failure of it stops a training",
)
@pytest.mark.slow
def test_a_process_of_wandb_that_dies_is_a_warning_and_the_journal_goes_on(tmp_path, offline):
    script = (
        "import psutil, sys\n"
        "from pathlib import Path\n"
        "from waltzrl.foundation.journal import Journal, WandbProject\n"
        "with Journal(Path(sys.argv[1]), wandb=WandbProject(name='p', config={})) as journal:\n"
        "    journal.write(0, {'time/step_seconds': 1})\n"
        "    for child in psutil.Process().children(): child.kill(); child.wait()\n"
        "    for step in range(1, 100): journal.write(step, {'time/step_seconds': 1})\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, check=True, env=os.environ, capture_output=True, text=True)
    assert done.stderr.count("training goes on without it") == 1
    assert len(lines(tmp_path)) == 100


def test_a_missing_wandb_is_named(tmp_path):
    script = (
        "import sys; sys.modules['wandb'] = None\n"
        "from pathlib import Path\n"
        "from waltzrl.errors import missing_extra\n"
        "from waltzrl.foundation.journal import Journal, WandbProject\n"
        "try: Journal(Path(sys.argv[1]), wandb=WandbProject(name='p', config={}))\n"
        "except ModuleNotFoundError as error: print(missing_extra(error))\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    said = subprocess.run(command, check=True, env=os.environ, capture_output=True, text=True)
    assert said.stdout == "wandb_project needs wandb: pip install 'waltzrl[wandb]'\n"
