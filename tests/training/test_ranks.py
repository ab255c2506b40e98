import json
import os
import signal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from support import rank_outages, rank_steps
from support.forked import waltzrl
from support.rank_processes import finished, started
from support.rank_steps import LAYOUTS, Steps, flat
from support.small_runs import run, save_recipe, save_validation
from support.timing import wait_until
from waltzrl.records import Tokens
from waltzrl.training.samples import Sample, divide_into_shares


def sample(prompt, length):
    return Sample(tokens=Tokens(prompt_ids=prompt, ids=(1,) * length, logprobs=()))


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple)
samples = st.lists(st.builds(sample, prompts, st.integers(1, 9)), min_size=1, max_size=20)


@pytest.mark.promise(
    "Training", "Ranks share an update by its tokens, and replies to one prompt stay together"
)
@given(samples, st.integers(1, 5))
def test_every_sample_is_in_one_share_and_shares_have_about_as_many_tokens(samples, count):
    divided = divide_into_shares(samples, count)
    assert sorted(position for share in divided for position in share) == [*range(len(samples))]
    sizes = [len(sample.tokens.prompt_ids) + len(sample.tokens.ids) for sample in samples]
    for share in divided:
        tokens = sum(sizes[position] for position in share)
        assert tokens <= sum(sizes) / count + max(sizes)


@pytest.mark.promise(
    "Training", "Ranks share an update by its tokens, and replies to one prompt stay together"
)
def test_replies_to_one_prompt_stay_together():
    divided = divide_into_shares([sample(prompt, 2) for prompt in ((7,), (8,), (7,), (8,))], 2)
    assert divided == [[0, 2], [1, 3]]


def files(path):
    """Return the files of weights and moments in a checkpoint."""
    return {str(file.relative_to(path)): file for file in path.glob("*/*.safetensors")}


def tensors(path):
    return {
        f"{name} {key}": value
        for name, file in files(path).items()
        for key, value in load_file(file).items()
    }


def contents(path):
    return {name: file.read_bytes() for name, file in files(path).items()}


@pytest.mark.promise(
    "Training",
    "Several ranks learn what one process does from the same samples, in every layout, and either "
    "goes on from the other's checkpoint",
)
@pytest.mark.promise(
    "Training",
    "A checkpoint of several ranks is one process's, bit for bit, and either reads the other's",
)
@pytest.mark.slow  # two processes that train
@pytest.mark.xdist_group("forked")
def test_two_ranks_learn_what_one_process_does_and_go_on_where_the_other_stopped(tmp_path):
    alone = {layout: Steps(layout) for layout in LAYOUTS}
    for layout, steps in alone.items():
        steps.take()
        steps.save(tmp_path / layout, 1)
    with started(2, rank_steps.main, tmp_path) as ranks:
        assert finished(ranks)[0] == [0, 0]
    for layout, steps in alone.items():
        saved_by_two = contents(tmp_path / layout / "resharded" / "step-000001")
        assert saved_by_two == contents(tmp_path / layout / "step-000001")
        measured = flat(steps.take())
        expected = tensors(steps.save(tmp_path / layout / "alone", 2))
        together = tensors(tmp_path / layout / "step-000002")
        torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-5)
        of_ranks = json.loads((tmp_path / layout / "measured.json").read_text())
        assert of_ranks == pytest.approx(measured, rel=1e-3, abs=1e-5)
        again = Steps(layout)
        again.load(tmp_path / layout / "step-000002")
        saved_by_one = contents(again.save(tmp_path / layout / "resharded", 2))
        assert saved_by_one == contents(tmp_path / layout / "step-000002")
        assert flat(again.take()) == pytest.approx(flat(steps.take()), rel=1e-3, abs=1e-4)


@pytest.mark.promise(
    "Training",
    "`--dry-run` plans the memory of each rank, and a number of ranks that does not divide "
    "`prompts_per_step` is refused with those that do",
)
@pytest.mark.promise(
    "Bad input",
    "Several processes that cannot share the prompts of a step evenly: the numbers that can",
)
def test_ranks_that_cannot_share_the_prompts_are_refused_in_one_line(tmp_path, monkeypatch, capsys):
    recipe = save_recipe(tmp_path)  # 3 prompts a step
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run("train", recipe, "--out", tmp_path / "run") == 2
    assert capsys.readouterr().err == (
        "error: 2 processes cannot share prompts_per_step 3 and 3 evenly; start 1 or 3 processes,"
        " or make it a multiple of 2\n"
    )
    assert not (tmp_path / "run").exists()


@pytest.mark.slow  # two processes that train
@pytest.mark.xdist_group("forked")
@pytest.mark.parametrize("during", ["publish", "sample"])
def test_an_outage_of_the_first_rank_stops_all_after_a_checkpoint(tmp_path, during):
    with started(2, rank_outages.main, tmp_path, during) as both:
        codes, said = finished(both)
    assert codes == [0, 0]
    assert [text.splitlines()[-1] for text in said] == ["step 1: no server is left"] * 2
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-000001"]


LONG = 1024
"""A context that holds the generated demonstrations."""

WARM_UP = """
[[stages]]
name = "warm-up"
kind = "imitation"
steps = 2
batch_size = 3
optimizer = { learning_rate = 1e-3, warmup_steps = 0 }
"""


@pytest.mark.promise(
    "Training",
    "Ranks sample with the newest weights; one that is killed ends the others with one line and "
    "exit status 2, and one process resumes and exports the run",
)
@pytest.mark.promise(
    "Bad input",
    "A process of several that ends, or does not answer: the rank that lost it; any number of "
    "processes resumes the run",
)
@pytest.mark.slow  # two processes that train
@pytest.mark.xdist_group("forked")
def test_a_rank_that_is_killed_ends_the_run_with_a_line_and_one_process_resumes_it(tmp_path):
    recipe, out, agents = save_recipe(tmp_path, LONG), tmp_path / "run", tmp_path / "agents"
    validation = save_validation(tmp_path / "validation.jsonl")
    text = recipe.read_text().replace("[[stages]]", f"{WARM_UP}[[stages]]", 1)
    recipe.write_text(text)
    command = (
        *("train", recipe, "--out", out, "--export", agents),
        *("--set=stages.feedback.prompts_per_step=4", "--set=stages.joint.prompts_per_step=4"),
        *(f"--set=data.validation=['{validation}']", "--set=checkpointing.validate_every=4"),
        *("--set=data.demonstrations=['generator:train']", "--set=data.limit=8"),
        "--set=stages.joint.reward=signed",  # remembers how often each class occurred
    )
    metrics = out / "metrics.jsonl"
    with started(2, waltzrl, *command) as (first, second):
        wait_until(lambda: metrics.exists() and len(metrics.read_bytes().splitlines()) > 4, 100)
        os.kill(second.pid, signal.SIGKILL)
        (code, _), (said, _) = finished([first, second])
    assert code == 2
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert errors == [
        "error: rank 0 lost another rank, which ended or did not answer in 0:30:00; see its error,"
        " and run the same command again to resume"
    ]
    of_ranks = [json.loads(line) for line in metrics.read_text().splitlines()]
    for line in of_ranks:  # what decodes has the weights that learn
        assert line["ratio/feedback_mean"] == pytest.approx(1.0, abs=1e-4)
    assert run(*command) == 0
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [line["step"] for line in lines] == [*range(22), 22]
    assert (agents / "manifest.json").exists()
