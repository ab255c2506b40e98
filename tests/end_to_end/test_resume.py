"""A run that dies at any moment goes on, and ends where an undisturbed one ends."""

import hashlib
import re
import signal
import subprocess
import sys

import pytest

from support.small_runs import run, save_recipe
from support.timing import wait_until

FINAL = "checkpoints/step-000022"


def weights(out):
    """SHA-256 of the final weights of both roles."""
    files = sorted((out / FINAL).glob("*/*model.safetensors"))
    assert len(files) == 2
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def stopped(recipe, out, by, *settings, ctrl_c=signal.SIG_DFL):
    """Start a run, and send it a signal in the middle of the second stage.

    What Ctrl-C does is inherited: shells that are no terminal's let background jobs ignore it.
    """
    command = [sys.executable, "-m", "waltzrl", "train", str(recipe), "--out", str(out), *settings]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, ctrl_c),
    ) as process:
        wait_until(lambda: lines(out) >= 7 or process.poll() is not None)  # after a checkpoint
        process.send_signal(by)
        return process.wait(30), process.stderr.read().decode()


def lines(out):
    journal = out / "metrics.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.parametrize("layout", ["two-models", "adapters"])
def test_killed_in_the_second_stage_and_run_again_the_weights_are_the_same(tmp_path, layout):
    settings = (
        f"--set=models.layout={layout}",
        f"--set=compute.checkpoint_activations={str(layout == 'adapters').lower()}",
    )
    recipe, whole, cut = save_recipe(tmp_path), tmp_path / "whole", tmp_path / "cut"
    assert run("train", recipe, "--out", whole, *settings) == 0
    code, said = stopped(recipe, cut, signal.SIGKILL, *settings)
    assert code == -signal.SIGKILL, said
    assert not (cut / FINAL).exists()
    assert run("train", recipe, "--out", cut, *settings) == 0
    assert weights(cut) == weights(whole)
    assert lines(cut) == lines(whole) == 22


@pytest.mark.parametrize(
    ("sent", "ctrl_c"),
    [
        (signal.SIGINT, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGTERM, signal.SIG_IGN),
    ],
    ids=["ctrl-c", "sigterm", "sigterm-where-ctrl-c-is-ignored"],
)
def test_stopped_by_hand_a_run_says_how_to_go_on(tmp_path, sent, ctrl_c):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    code, said = stopped(recipe, out, sent, ctrl_c=ctrl_c)
    assert code == 130, said
    *progress, last = said.splitlines()
    assert last == "stopped; run train again to resume"
    assert all(re.match(r"(feedback|joint): step \d+ of 22 ", line) for line in progress), said
    assert run("train", recipe, "--out", out) == 0
    assert lines(out) == 22


def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(tmp_path, caplog):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    assert run("train", recipe, "--out", out) == 0
    before = weights(out)
    damaged = out / FINAL / "conversation" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[: -(1 << 10)])
    assert run("train", recipe, "--out", out) == 0
    assert "step-000022 is refused" in caplog.text
    assert str(damaged) in caplog.text
    assert weights(out) == before
