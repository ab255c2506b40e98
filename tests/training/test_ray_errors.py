"""What cannot be trained on Ray is one line, before anything is started."""

import os
import subprocess
import sys

import pytest

from support.small_runs import run, save_recipe
from waltzrl.errors import InputError
from waltzrl.policies.compute import RaySettings
from waltzrl.training.scale.cluster import require_places


@pytest.fixture
def complaint(tmp_path, capsys):
    def train(*options):
        recipe = save_recipe(tmp_path)
        assert run("train", recipe, "--out", tmp_path / "run", *options) == 2
        assert not (tmp_path / "run").exists()
        return capsys.readouterr().err.removeprefix("error: ").strip()

    return train


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
def test_a_cluster_that_cannot_be_reached(complaint):
    line = complaint("--ray", "127.0.0.1:9")
    assert line.startswith("no Ray cluster at 127.0.0.1:9 (")
    assert line.endswith(
        "start one with `ray start --head`, or use --ray local for this machine alone"
    )


@pytest.mark.promise(
    "Bad input",
    "Training on Ray without the package, with no cluster at the address, or with too little that "
    "is free: what to install, the address, or what is needed and what there is; nothing is "
    "written",
)
def test_more_processes_than_this_machine_has_cpus_for(complaint):
    cpus = os.cpu_count()
    line = complaint("--ray", "local", f"--set=compute.ray.workers={cpus}")
    assert line == (
        f"{cpus + 1} processes (1 learners, {cpus} workers) need 1 CPU each; --ray local has this"
        f" machine alone, with {cpus} CPU: lower compute.ray.learners, compute.ray.workers or"
        " compute.threads, or give --ray the address of a larger cluster"
    )


@pytest.mark.parametrize(
    ("address", "resources"),
    [("local", {"CPU": 4, "GPU": 2}), ("auto", {"CPU": 1}), ("head:6379", {})],
)
def test_a_cluster_may_grow_and_a_machine_that_has_enough_will_do(address, resources):
    settings = RaySettings(address=address, workers=1)
    require_places(settings, {"CPU": 2.0, "GPU": 1.0}, resources)


@pytest.mark.parametrize("resources", [{"CPU": 3, "GPU": 2}, {"CPU": 4, "GPU": 1}, {"CPU": 4}])
def test_threads_and_gpus_count_too(resources):
    settings = RaySettings(address="local", workers=1)
    with pytest.raises(InputError, match="need 2 CPU and 1 GPU each"):
        require_places(settings, {"CPU": 2.0, "GPU": 1.0}, resources)


def test_learners_that_cannot_share_the_prompts(complaint):
    line = complaint("--ray", "127.0.0.1:9", "--set", "compute.ray.learners=2")
    assert line.startswith("2 processes cannot share prompts_per_step 3 and 3 evenly")


@pytest.mark.promise(
    "Bad input",
    "VLLM servers and rollout workers that would both sample, or servers for Ray to start without "
    "Ray or a number: both keys",
)
def test_servers_and_workers_that_would_both_sample(complaint):
    options = (
        "models.layout=adapters",
        "compute.rollouts=vllm:http://gpu",
        "compute.ray.workers=1",
    )
    line = complaint("--ray", "auto", *(f"--set={option}" for option in options))
    assert line.endswith(
        "compute.rollouts = 'vllm:http://gpu' and compute.ray.workers = 1 both say what samples;"
        " make one of them local or 0"
    )


@pytest.mark.promise(
    "Bad input",
    "VLLM servers and rollout workers that would both sample, or servers for Ray to start without "
    "Ray or a number: both keys",
)
def test_servers_that_ray_starts_need_ray_and_a_number(complaint):
    adapters = ("--set=models.layout=adapters", "--set=compute.rollouts=vllm")
    needed = "compute.rollouts = 'vllm' needs --ray and compute.ray.workers"
    assert needed in complaint(*adapters, "--set=compute.ray.workers=2")
    assert needed in complaint(*adapters, "--ray", "auto")


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
def test_without_ray_it_says_what_to_install(tmp_path):
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from waltzrl.__main__ import main\n"
        f"main(['train', {str(save_recipe(tmp_path))!r}, '--ray', 'auto'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    line = "error: compute.engine ray needs Ray: pip install 'waltzrl[ray]'\n"
    assert (ended.returncode, ended.stderr) == (2, line)
