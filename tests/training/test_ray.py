"""Training on a real Ray cluster of this machine, with processes that are killed."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from support import ray_cluster
from support.small_runs import run, save_recipe, save_validation
from support.timing import wait_until

pytestmark = pytest.mark.xdist_group("ray")  # one cluster at a time


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recipe")
    path, validation = save_recipe(folder), save_validation(folder / "validation.jsonl")
    text = path.read_text().replace("[data]", f'[data]\nvalidation = ["{validation}"]')
    text = text.replace("[checkpointing]", "[checkpointing]\nvalidate_every = 4")
    path.write_text(text.replace("steps = 20", "steps = 6"))
    return path


@pytest.fixture(scope="module")
def undisturbed(recipe, tmp_path_factory):
    """What one process learns."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert run("train", recipe, "--out", out, "--json") == 0
    return learned(out)


def learned(out):
    """Return the final weights, and the metrics of each step without times."""
    weights = sorted((out / "checkpoints" / "step-000008").glob("*/*model.safetensors"))
    assert len(weights) == 2
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [hashlib.sha256(file.read_bytes()).hexdigest() for file in weights], [
        {name: value for name, value in line.items() if not name.startswith("time/")}
        for line in lines
    ]


def steps(out):
    metrics = out / "metrics.jsonl"
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


@pytest.mark.promise(
    "Evaluation",
    "On Ray, with a worker and a learner killed, a run ends with the weights and metrics of one "
    "process, bit for bit",
)
@pytest.mark.promise(
    "Evaluation",
    "Without Ray, a cluster or free resources training on Ray is one line, and nothing is written",
)
@pytest.mark.promise(
    "Bad input",
    "Training on Ray without the package, with no cluster at the address, or with too little that "
    "is free: what to install, the address, or what is needed and what there is; nothing is "
    "written",
)
@pytest.mark.slow
def test_a_worker_and_a_learner_are_killed_and_all_is_as_in_one_process(
    recipe, undisturbed, tmp_path, capsys
):
    out = tmp_path / "run"
    with ray_cluster.cluster() as cluster:
        train = ("train", recipe, "--out", out, "--json", "--ray", cluster.address)
        assert run(*train, "--set=compute.ray.workers=8", "--set=compute.ray.wait_seconds=0.1") == 2
        said = capsys.readouterr().err.splitlines()
        assert [line for line in said if line.startswith("error: ")] == [
            "error: 9 processes (1 learners, 8 workers) need 1 CPU each; after 0.1 s the cluster"
            " has 3 CPU free of 3 CPU: lower compute.ray.learners or compute.ray.workers, or add"
            " machines"
        ]
        assert not out.exists()

        def kill_both():
            wait_until(lambda: steps(out) >= 2, 120)
            ray_cluster.kill(cluster, "RolloutWorker")
            wait_until(lambda: steps(out) >= 5, 120)
            ray_cluster.kill(cluster, "LearningProcess")

        killer = Thread(target=kill_both)
        killer.start()
        assert run(*train, "--set=compute.ray.workers=1") == 0
        killer.join()
    assert json.loads(capsys.readouterr().out)["run"] == str(out)  # and nothing that Ray prints
    assert learned(out) == undisturbed


@pytest.mark.promise(
    "Evaluation",
    "When Ray's head is killed the run ends, and goes on without Ray to the weights of one process",
)
@pytest.mark.slow
def test_when_the_head_is_killed_the_run_ends_and_goes_on_without_ray(
    recipe, undisturbed, tmp_path
):
    out = tmp_path / "run"
    train = ("train", recipe, "--out", out)
    with ray_cluster.cluster() as cluster:
        driver = subprocess.Popen(
            [sys.executable, "-m", "waltzrl", *train, "--ray", cluster.address],
            stderr=subprocess.PIPE,
            text=True,
        )
        wait_until(lambda: steps(out) >= 2 or driver.poll() is not None, 120)
        (learner,) = ray_cluster.processes(cluster, "LearningProcess")
        ray_cluster.kill_head(cluster)
        _, said = driver.communicate(timeout=60)
        wait_until(lambda: not Path(f"/proc/{learner}").exists())
    assert driver.returncode == 1
    assert "GCS" in said  # in Ray's own words
    assert run(*train) == 0
    assert learned(out) == undisturbed
