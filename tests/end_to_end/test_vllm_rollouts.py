"""A run whose rollouts servers sample, which die and are replaced."""

import hashlib
import json
import shutil

import pytest

from support.forked import waltzrl
from support.rank_processes import finished, started
from support.small_runs import run, save_recipe
from support.tiny_models import tiny_model
from support.vllm_server import serving

pytestmark = pytest.mark.xdist_group("forked")
FEW_STEPS = (
    "--set=models.layout=adapters",
    "--set=stages.feedback.steps=1",
    "--set=stages.joint.steps=2",
)


def train(recipe, out, *servers):
    rollouts = "vllm:" + ",".join(server.url for server in servers)
    return run("train", recipe, "--out", out, *FEW_STEPS, "--set", f"compute.rollouts={rollouts}")


def final_weights(out):
    files = sorted((out / "checkpoints" / "step-000003").glob("*/*model.safetensors"))
    assert len(files) == 2
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]


def first(server, path, version):
    """Return how many requests came before the first one on `path` that names the version."""
    return next(i for i, (at, name) in enumerate(server.asked) if at == path and version in name)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A run on one server: its folder, and the server as it was at the end."""
    folder = tmp_path_factory.mktemp("undisturbed")
    recipe = save_recipe(folder)
    with serving(tiny_model()) as server:
        assert train(recipe, folder / "run", server) == 0
    return folder / "run", server


@pytest.mark.promise(
    "Training",
    "Every update is published on every server under a new name, the old one is unloaded, and at "
    "the end nothing is left",
)
def test_a_run_on_a_server_publishes_every_update_and_cleans_up(undisturbed):
    out, server = undisturbed
    versions = [name.rpartition("-")[0] for name in server.loaded]
    assert versions == [
        *("waltzrl-conversation-v0", "waltzrl-feedback-v0"),
        "waltzrl-feedback-v1",  # stage 1 trains the feedback agent alone
        *("waltzrl-conversation-v2", "waltzrl-feedback-v2"),
        *("waltzrl-conversation-v3", "waltzrl-feedback-v3"),
    ]
    assert server.adapters == {}
    assert not (out / "published").exists()
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) == 3
    for line in lines:
        assert line["ratio/feedback_sampler_mean"] == pytest.approx(1.0, abs=1e-3)
    sampled = {name.rpartition("-")[0] for path, name in server.asked if path == "/v1/completions"}
    assert sampled >= {"waltzrl-feedback-v0", "waltzrl-feedback-v1", "waltzrl-conversation-v2"}


@pytest.mark.promise(
    "Training",
    "A run without a server stops in one line with a checkpoint, and with another server ends "
    "with the same weights",
)
@pytest.mark.promise(
    "Bad input",
    "No vLLM server left for rollouts: the step, the last failure, and the command that starts "
    "one; the run resumes at the step",
)
@pytest.mark.parametrize("moment", ["/v1/load_lora_adapter", "/v1/completions"])
def test_without_a_server_a_run_stops_in_one_line_and_goes_on_with_another(
    tmp_path, capsys, undisturbed, moment
):
    """The only server dies while it is given version 1, or while version 1 samples."""
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    with serving(tiny_model()) as server:
        server.dies_after = first(undisturbed[1], moment, "-feedback-v1-")
        assert train(recipe, out, server) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "step 1: no vLLM server is left to sample" in errors[0]
    assert "vllm serve" in errors[0]
    assert (out / "checkpoints" / "step-000001").is_dir()
    with serving(tiny_model()) as other:
        assert train(recipe, out, other) == 0
    # The server's name is no part of what is learnt, and both sample with the same seeds.
    assert final_weights(out) == final_weights(undisturbed[0])


@pytest.mark.promise(
    "Training",
    "A server that fails is left out, another answers what it was asked, and after the next "
    "update it is tried again",
)
def test_a_run_on_two_servers_outlives_one(tmp_path, undisturbed):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    with serving(tiny_model()) as dying, serving(tiny_model()) as other:
        dying.dies_after = 8
        assert train(recipe, out, dying, other) == 0
    assert final_weights(out) == final_weights(undisturbed[0])


@pytest.mark.promise(
    "Bad input",
    "A vLLM server for rollouts with another base, another tokenizer, without adapters or without "
    "log-probabilities: the server, and the command that starts it",
)
def test_a_server_of_another_base_is_refused_before_the_first_step(tmp_path, capsys):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    with serving(tiny_model(seed=1)) as server:
        assert train(recipe, out, server) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "has another base than the run" in error
    assert not (out / "checkpoints").exists()


AHEAD = (
    "--set=compute.staleness=1",
    "--set=models.layout=adapters",
    "--set=checkpointing.checkpoint_every=100",
    "--set=stages.feedback.steps=1",
    "--set=stages.joint.steps=6",
    "--set=stages.joint.prompts_per_step=1",  # of four: an epoch ends after four steps
    "--set=stages.joint.group_size=4",
    "--set=stages.joint.optimizer.learning_rate=0.05",
)


def train_ahead(recipe, out, server):
    return run("train", recipe, "--out", out, *AHEAD, f"--set=compute.rollouts=vllm:{server.url}")


def metrics_of(out):
    """Return the metrics of each step, without times."""
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [
        {name: value for name, value in line.items() if not name.startswith("time/")}
        for line in lines
    ]


@pytest.fixture(scope="module")
def sampled_ahead(tmp_path_factory):
    """A run whose steps are sampled ahead: its recipe, its folder, and its server."""
    folder = tmp_path_factory.mktemp("ahead")
    recipe = save_recipe(folder)
    with serving(tiny_model()) as server:
        assert train_ahead(recipe, folder / "run", server) == 0
    return recipe, folder / "run", server


@pytest.mark.promise(
    "Training",
    "With `compute.staleness = 1` the next step is sampled during an update, by weights that are "
    "exactly one update older, is corrected by the ratio that the journal shows, and a resumed "
    "run ends with the same weights; a server that dies meanwhile costs nothing that was learnt",
)
def test_a_step_is_sampled_ahead_by_weights_that_are_one_update_old(sampled_ahead):
    _recipe, out, server = sampled_ahead
    lines = metrics_of(out)
    # Nothing is sampled ahead over the end of a stage (step 0) and of an epoch (step 4).
    assert [line["staleness/updates"] for line in lines] == [0, 0, 1, 1, 1, 0, 1]
    sampled = {
        name.rpartition("-")[0].removeprefix("waltzrl-feedback-")
        for path, name in server.asked
        if path == "/v1/completions" and "-feedback-" in name
    }
    # Version n is of n steps: step 2 is of v1, which sampled step 1; step 5 is of its own v5.
    assert sampled == {"v0", "v1", "v2", "v3", "v5"}
    for line in lines[1:]:
        off = abs(line["ratio/conversation_sampler_max"] - 1)
        assert off > 1e-3 if line["staleness/updates"] else off < 1e-3, line


@pytest.mark.promise(
    "Training",
    "With `compute.staleness = 1` the next step is sampled during an update, by weights that are "
    "exactly one update older, is corrected by the ratio that the journal shows, and a resumed "
    "run ends with the same weights; a server that dies meanwhile costs nothing that was learnt",
)
def test_a_run_that_samples_ahead_resumes_as_if_undisturbed(sampled_ahead, tmp_path):
    recipe, whole, _server = sampled_ahead
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    shutil.rmtree(out / "checkpoints" / "step-000007")  # as killed in the last steps
    with serving(tiny_model()) as server:
        assert train_ahead(recipe, out, server) == 0
        assert any("-v5-" in name for _path, name in server.asked)
    assert metrics_of(out) == metrics_of(whole)
    weights = [
        [
            file.read_bytes()
            for file in sorted(folder.glob("checkpoints/step-000007/*/*model.safetensors"))
        ]
        for folder in (out, whole)
    ]
    assert len(weights[0]) == 2
    assert weights[0] == weights[1]


@pytest.mark.promise(
    "Training",
    "With `compute.staleness = 1` the next step is sampled during an update, by weights that are "
    "exactly one update older, is corrected by the ratio that the journal shows, and a resumed "
    "run ends with the same weights; a server that dies meanwhile costs nothing that was learnt",
)
def test_a_server_that_dies_while_it_samples_ahead_ends_the_run_in_one_line(
    sampled_ahead, tmp_path, capsys
):
    recipe, _whole, undisturbed_server = sampled_ahead
    out = tmp_path / "run"
    with serving(tiny_model()) as server:
        # It samples step 3 while step 2 is learnt.
        server.dies_after = first(undisturbed_server, "/v1/completions", "-feedback-v2-")
        assert train_ahead(recipe, out, server) == 2
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "step 3: no vLLM server is left to sample" in errors[0]
    assert (out / "checkpoints" / "step-000003").is_dir()  # what was learnt meanwhile is kept


@pytest.mark.promise(
    "Training",
    "Of several ranks the first samples on vLLM servers and publishes once; the first step "
    "measures what one process does",
)
@pytest.mark.slow  # two processes that load torch
def test_of_two_ranks_the_first_samples_on_the_server_and_both_learn(tmp_path, undisturbed):
    recipe, out = save_recipe(tmp_path), tmp_path / "run"
    with serving(tiny_model()) as server:
        rollouts = f"--set=compute.rollouts=vllm:{server.url}"
        command = ("train", recipe, "--out", out, *FEW_STEPS, rollouts)
        with started(2, waltzrl, *command) as ranks:
            codes, said = finished(ranks)
    assert codes == [0, 0], said
    versions = [[n.rpartition("-")[0] for n in s.loaded] for s in (server, undisturbed[1])]
    assert versions[0] == versions[1]  # published once
    assert server.adapters == {}
    of_ranks, alone = (
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        for folder in (out, undisturbed[0])
    )
    learned = {name for name in alone[0] if not name.startswith("time/")}
    first_step = [{name: lines[0][name] for name in learned} for lines in (of_ranks, alone)]
    assert first_step[0] == pytest.approx(first_step[1], rel=1e-3, abs=1e-5)
    assert len(of_ranks) == 3
