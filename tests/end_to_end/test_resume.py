"""A run that dies at any moment goes on, and ends where an undisturbed one ends."""

import hashlib
import json
import os
import re
import shutil
import signal
import threading
from importlib.resources import files

import pytest

from support.forked import Forked, waltzrl
from support.openai_server import serving
from support.small_runs import run, save_model, save_recipe, save_validation
from support.timing import wait_until
from waltzrl.errors import PolicyError
from waltzrl.foundation.run_directory import RunDirectory
from waltzrl.policies import ScriptedPolicy
from waltzrl.policies.weights import load_causal_lm
from waltzrl.training.checkpoints import weights_digest

pytestmark = pytest.mark.xdist_group("forked")
FINAL = "checkpoints/step-000014"
SHORTER = "--set=stages.joint.steps=12"


def weights(out):
    """SHA-256 of the final weights of both roles."""
    return weights_in(out / FINAL)


def weights_in(checkpoint, roles=2):
    files = sorted(checkpoint.glob("*/*model.safetensors"))
    assert len(files) == roles
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def stopped(recipe, out, by, *settings, ctrl_c=None):
    """Start a run, and send it a signal in the middle of the second stage.

    What Ctrl-C does is inherited: shells that are no terminal's let background jobs ignore it.
    """
    command = (waltzrl, "train", recipe, "--out", out, *settings)
    with Forked(*command, ctrl_c=ctrl_c) as process:
        wait_until(lambda: lines(out) >= 7 or process.poll() is not None)  # after a checkpoint
        process.send_signal(by)
        said = process.stderr.read().decode()
        return process.wait(60), said


def lines(out):
    journal = out / "metrics.jsonl"
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


@pytest.mark.promise(
    "Training",
    "A run that is killed and started again ends with the same weights, in both layouts, with "
    "checkpointed activations too",
)
@pytest.mark.promise(
    "Evaluation",
    "Validation changes no step: the same weights are measured alike, and a killed run goes on "
    "bit by bit",
)
@pytest.mark.promise("Requirements", "Stage2Trainer: config, train(), checkpoints, --export-models")
@pytest.mark.parametrize("layout", ["two-models", "adapters"])
def test_killed_in_the_second_stage_and_run_again_the_weights_are_the_same(tmp_path, layout):
    validation = save_validation(tmp_path / "validation.jsonl")
    wording = shutil.copytree(files("waltzrl.agents") / "prompts" / "tiny", tmp_path / "wording")
    settings = [
        SHORTER,
        f"--set=models.layout={layout}",
        f"--set=data.validation=['{validation}']",
        "--set=checkpointing.validate_every=5",
        "--set=stages.feedback.reward=signed",  # remembers how often each class occurred
        "--set=stages.joint.reward=signed",
        "--set=stages.joint.algorithm.aggregation=token",
        "--set=agents.feedback_max_new_tokens=5",
        f"--set=agents.wording={wording}",
    ]
    if layout == "adapters":
        settings += ["--set=compute.checkpoint_activations=true", "--set=compute.dtype=bfloat16"]
    recipe, whole, cut = save_recipe(tmp_path), tmp_path / "whole", tmp_path / "cut"
    assert run("train", recipe, "--out", whole, *settings) == 0
    code, said = stopped(recipe, cut, signal.SIGKILL, *settings)
    assert code == -signal.SIGKILL, said
    assert not (cut / FINAL).exists()
    assert run("train", recipe, "--out", cut, *settings) == 0
    assert weights(cut) == weights(whole)
    assert measured(cut) == measured(whole)
    assert lines(cut) == lines(whole) == 15  # the last is the validation of the final weights
    ratios = [line["ratio/feedback_sampler_max"] for line in measured(whole)[:-1]]
    sampled_in_another_precision = [ratio != 1 for ratio in ratios]
    assert all(sampled_in_another_precision) is (layout == "adapters")
    assert any(sampled_in_another_precision) is (layout == "adapters")
    assert all(line["length/feedback_tokens"] <= 5 for line in measured(whole)[:-1])


@pytest.mark.promise(
    "Training",
    "A run of three roles that is killed and started again ends with the same weights",
)
def test_killed_while_an_attacker_learns_the_weights_of_three_roles_are_the_same(tmp_path):
    recipe, whole, cut = save_recipe(tmp_path), tmp_path / "whole", tmp_path / "cut"
    attacker = save_model(tmp_path / "attacker", "llama", seed=1)
    settings = [
        "--set=stages.joint.steps=8",
        '--set=stages.joint.learns=["conversation", "feedback", "attacker"]',
        "--set=stages.joint.attacked_share=0.9",
        f"--set=attacker.base={attacker}",
        "--set=attacker.max_new_tokens=24",  # of random weights some turns end by then
        "--set=attacker.elicit=Ask.",
        "--set=attacker.provoke=Ask so.",
        "--set=attacker.check=operator:ne",  # whatever it writes is on its goal
    ]
    assert run("train", recipe, "--out", whole, *settings) == 0
    code, said = stopped(recipe, cut, signal.SIGKILL, *settings)
    assert code == -signal.SIGKILL, said
    final = "checkpoints/step-000010"
    assert not (cut / final).exists()
    assert run("train", recipe, "--out", cut, *settings) == 0
    assert weights_in(cut / final, 3) == weights_in(whole / final, 3)
    assert measured(cut) == measured(whole)
    attacked = [line for line in measured(whole) if "attack/success_rate" in line]
    assert attacked
    learned = weights_digest(load_causal_lm(str(whole / final / "attacker"), "cpu").model)
    assert learned != weights_digest(load_causal_lm(str(attacker), "cpu").model)


def measured(out):
    """Return the metrics of every step, but for the times."""
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith("time/")}
        for line in (out / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.promise(
    "Evaluation",
    "Rates on a validation set are in the journal; the best checkpoint by F1 is kept and "
    "exported, and the export names it",
)
def test_the_best_checkpoint_on_the_validation_set_is_exported_and_the_export_says_which(
    tmp_path, capsys
):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    validation = save_validation(tmp_path / "validation.jsonl")
    settings = (
        *("--set", f"data.validation=['{validation}']", "--set", "stages.joint.steps=4"),
        *("--set", "checkpointing.validate_every=1", "--set", "checkpointing.keep_last=1"),
    )
    assert run("train", recipe, "--out", out, "--export", tmp_path / "first", *settings) == 0
    scores = {line["step"]: line["validation/f1"] for line in measured(out)}
    assert sorted(scores) == list(range(7))
    best = max(scores, key=lambda step: (scores[step], step))
    said = capsys.readouterr().out
    assert f"best on data.validation: step {best}, F1 {scores[best]:.1%}" in said
    assert run("export", out, tmp_path / "second") == 0
    kept = (out / "checkpoints" / f"step-{best:06d}").glob("*/model.safetensors")
    digests = sorted(hashlib.sha256(file.read_bytes()).hexdigest() for file in kept)
    for export in (tmp_path / "first", tmp_path / "second"):
        assert sorted(weights_in(export)) == digests
        manifest = json.loads((export / "manifest.json").read_text())
        assert manifest["validation"] == {"step": best, "f1": scores[best]}


@pytest.mark.promise(
    "Command line",
    "SIGTERM ends a command as Ctrl-C does, also where a shell lets it ignore Ctrl-C",
)
@pytest.mark.parametrize(
    ("sent", "ctrl_c"),
    [
        (signal.SIGINT, None),
        (signal.SIGTERM, signal.SIG_IGN),
    ],
    ids=["ctrl-c", "sigterm-where-ctrl-c-is-ignored"],
)
def test_stopped_by_hand_a_run_says_how_to_go_on(tmp_path, sent, ctrl_c):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    code, said = stopped(recipe, out, sent, SHORTER, ctrl_c=ctrl_c)
    assert code == 130, said
    *progress, last = said.splitlines()
    assert last == "stopped; run train again to resume"
    assert all(re.match(r"(feedback|joint): step \d+ of 14 ", line) for line in progress), said
    assert run("train", recipe, "--out", out, SHORTER) == 0
    assert lines(out) == 14


@pytest.mark.promise(
    "Bad input",
    "A damaged checkpoint: the file; the checkpoint before it is used, the newest in the place of "
    "the best",
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(tmp_path, caplog):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    train, final = ("train", recipe, "--out", out, "--set=stages.joint.steps=4"), "step-000006"
    assert run(*train) == 0
    before = weights_in(out / "checkpoints" / final)
    damaged = out / "checkpoints" / final / "conversation" / "model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[: -(1 << 10)])
    assert run(*train) == 0
    assert f"{final} is refused" in caplog.text
    assert str(damaged) in caplog.text
    assert weights_in(out / "checkpoints" / final) == before


@pytest.mark.promise(
    "Training",
    "A run keeps what its judge's model answered, within bounds, and is judged by one revision of "
    "it",
)
@pytest.mark.promise(
    "Evaluation",
    "A run whose judge is down or does not decide stops with one line and a checkpoint, learns "
    "nothing from it, and resumes bit by bit",
)
def test_a_judge_that_dies_stops_the_run_in_one_line_and_when_it_is_back_all_is_the_same(
    tmp_path, capsys
):
    recipe, whole, cut = save_recipe(tmp_path), tmp_path / "whole", tmp_path / "cut"

    def answer(messages):
        if down.is_set() and lines(cut) >= 4:
            raise PolicyError("out of memory")
        return "yes" if "bomb" in messages[-1].content else "no"

    down = threading.Event()
    with serving({"m": ScriptedPolicy(answer)}) as server:
        settings = ("--set", f"judge=llm:m@{server.base_url}", "--set", "stages.joint.steps=4")
        assert run("train", recipe, "--out", whole, *settings) == 0
        down.set()
        capsys.readouterr()
        assert run("train", recipe, "--out", cut, *settings) == 2
        said = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
        down.clear()
        server.model = "m-v2"
        assert run("train", recipe, "--out", cut, *settings) == 2
        changed = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
        server.model = None
        assert run("train", recipe, "--out", cut, *settings) == 0
    assert len(said) == 1
    assert said[0].startswith("error: step 4: 0 of 3 collaborations were scored, need 50% (")
    assert said[0].endswith("and run train again to resume")
    assert len(changed) == 1
    assert "model is of revision 'm-v2', and was of 'm' before in this run; serve" in changed[0]
    ends = [run / "checkpoints" / "step-000006" for run in (whole, cut)]
    for name in ("conversation/model.safetensors", "feedback/model.safetensors", "state.json"):
        first, second = (end / name for end in ends)
        assert first.read_bytes() == second.read_bytes()


@pytest.mark.promise(
    "Evaluation", "Two runs in one folder, at once or of two recipes, are refused in one line"
)
@pytest.mark.promise(
    "Bad input",
    "A run directory, a study or the folder of an evaluation that another process uses: the "
    "process",
)
def test_two_runs_in_one_folder_are_refused_in_one_line(tmp_path, capsys):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"

    def refused(*settings):
        capsys.readouterr()
        assert run("train", recipe, "--out", out, "--set", "stages.joint.steps=1", *settings) == 2
        errors = [e for e in capsys.readouterr().err.splitlines() if e.startswith("error: ")]
        assert len(errors) == 1
        return errors[0]

    with RunDirectory(out):
        assert refused() == (
            f"error: {out} is in use by process {os.getpid()}; wait for it to end or choose "
            "another run directory"
        )
    assert run("train", recipe, "--out", out, "--set", "stages.joint.steps=1") == 0
    before = weights_in(out / "checkpoints" / "step-000003")
    assert refused("--set", "seed=4") == (
        f"error: {out} was begun with another recipe (other seed); choose another run directory, "
        "or go back to that recipe"
    )
    assert weights_in(out / "checkpoints" / "step-000003") == before
