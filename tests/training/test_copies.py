"""A run is copied to a URL, and goes on from there on another machine."""

import asyncio
import json
import logging
import shutil
from functools import cache
from uuid import uuid4

import fsspec
import msgspec
import pytest

from support.small_runs import save_prompts, save_validation
from waltzrl.errors import RecipeError
from waltzrl.records import Collaboration, Demonstration, Feedback, Message, Prompt, Reply, Round
from waltzrl.training.checkpoints import latest_good, weights_digest
from waltzrl.training.opening import train
from waltzrl.training.recipe import load_recipe

RECIPE = """
seed = 3
[models]
base = { hidden = 32, layers = 1, heads = 2, context = 256 }
layout = "two-models"
[agents]
wording = "tiny"
max_new_tokens = 6
[checkpointing]
checkpoint_every = 1
keep_last = 2
validate_every = 2
kl_limit = 1e6
[compute]
device = "cpu"
threads = 1
[[stages]]
name = "warm-up"
kind = "imitation"
steps = 2
batch_size = 1
optimizer = { learning_rate = 1e-3, warmup_steps = 0 }
[[stages]]
name = "joint"
kind = "reinforcement"
learns = ["conversation", "feedback"]
steps = 5
prompts_per_step = 2
optimizer = { learning_rate = 1e-2, warmup_steps = 0 }
"""
CHANGING = ("time/", "memory/")


class KilledError(Exception):
    """Stands for the end of the process."""


@pytest.fixture(scope="module")
def begin(tmp_path_factory):
    """Return what trains in a folder and returns the weights, the best step and the journal."""
    inputs = tmp_path_factory.mktemp("inputs")
    prompt = Prompt(id="p", messages=(Message(role="user", content="Which bread is lazy?"),))
    feedback = Feedback(unsafe=False, overrefuse=False, text="")
    said = Collaboration(
        prompt=prompt, draft=Reply(text="None"), rounds=(Round(feedback=feedback),)
    )
    shown = inputs / "demonstrations.jsonl"
    shown.write_bytes(msgspec.json.encode(Demonstration(collaboration=said)) + b"\n")
    recipe = inputs / "recipe.toml"
    recipe.write_text(RECIPE)
    data = {
        "prompts": save_prompts(inputs / "prompts.jsonl"),
        "validation": save_validation(inputs / "validation.jsonl"),
        "demonstrations": shown,
    }
    named = [f"data.{key}={[str(path)]}" for key, path in data.items()]

    def trained(folder, *settings, report=lambda _progress: None):
        team = asyncio.run(train(load_recipe(recipe, [*named, *settings]), folder, report))
        digests = {role: weights_digest(own.causal_lm.model) for role, own in team.weights.items()}
        return digests, team.best, journal(folder), journal(folder / "warm-up")

    return trained


@pytest.fixture(scope="module")
def whole(begin, tmp_path_factory):
    """Return what an undisturbed run ends with, which is trained once."""
    return cache(lambda: begin(tmp_path_factory.mktemp("whole")))


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return (
        f"memory://{uuid4()}/run" if request.param == "memory" else f"file://{tmp_path}/store/run"
    )


def journal(folder):
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [{k: v for k, v in line.items() if not k.startswith(CHANGING)} for line in lines]


def to(url):
    return f"checkpointing.copies={url}"


def killed_after(step):
    def report(progress):
        if (progress.stage, progress.step) == ("joint", step):
            raise KilledError

    return report


def steps_at(url, part="checkpoints"):
    store, root = fsspec.url_to_fs(url)
    return sorted(path.rpartition("/")[2] for path in store.ls(f"{root}/{part}", detail=False))


@pytest.mark.promise(
    "Training",
    "A run whose folder is lost goes on from its copy at a URL to the weights of one that was "
    "not; a half or a damaged copy is refused by name, and the one before is used",
)
@pytest.mark.promise("Requirements", "checkpoints at any URL, and Weights & Biases")
@pytest.mark.slow
def test_a_run_whose_folder_is_lost_goes_on_from_its_copy_bit_by_bit(tmp_path, begin, whole, url):
    with pytest.raises(KilledError):
        begin(tmp_path / "lost", to(url), report=killed_after(3))
    shutil.rmtree(tmp_path / "lost")
    seen = []

    def report(progress):
        seen.append((progress.stage, progress.step))

    assert begin(tmp_path / "other", to(url), report=report) == whole()
    assert seen == [("joint", 3), ("joint", 4)]
    kept = sorted(path.name for path in (tmp_path / "other" / "checkpoints").iterdir())
    assert steps_at(url) == kept
    assert steps_at(url, "warm-up/checkpoints") == ["step-000001", "step-000002"]
    # A finished run is only fetched.
    assert begin(tmp_path / "third", to(url), report=seen.append) == whole()
    assert len(seen) == 2


@pytest.mark.promise(
    "Training",
    "A run whose folder is lost goes on from its copy at a URL to the weights of one that was "
    "not; a half or a damaged copy is refused by name, and the one before is used",
)
@pytest.mark.slow
def test_a_half_or_a_damaged_copy_is_refused_and_the_one_before_is_used(
    tmp_path, begin, whole, url, caplog
):
    with pytest.raises(KilledError):
        begin(tmp_path / "lost", to(url), "checkpointing.keep_last=4", report=killed_after(4))
    store, root = fsspec.url_to_fs(url)
    assert steps_at(url)[-3:] == ["step-000002", "step-000003", "step-000004"]
    store.rm_file(f"{root}/checkpoints/step-000004/MANIFEST.json")  # as if it was cut off
    weights = f"{root}/checkpoints/step-000003/feedback/model.safetensors"
    content = store.cat_file(weights)
    store.pipe_file(weights, content[:-1] + bytes([content[-1] ^ 1]))
    seen = []

    def report(progress):
        seen.append(progress.step)

    settings = (to(url), "checkpointing.keep_last=4")
    assert begin(tmp_path / "other", *settings, report=report) == whole()
    assert seen == [2, 3, 4]
    assert f"{url}: step-000003 is refused: " in caplog.text
    assert "model.safetensors was altered" in caplog.text
    assert store.cat_file(weights) == content  # saved and copied again


@pytest.mark.promise(
    "Training",
    "Where copies go that cannot be reached while training, there is a warning, and the next "
    "checkpoint brings the copy up to date",
)
@pytest.mark.slow
def test_a_store_that_is_away_is_a_warning_and_the_next_checkpoint_brings_it_up_to_date(
    tmp_path, begin, whole, caplog
):
    store = tmp_path / "store"

    def report(progress):
        if (progress.stage, progress.step) == ("joint", 1):
            store.rename(tmp_path / "away")
            store.write_text("")  # where a folder was
        if (progress.stage, progress.step) == ("joint", 3):
            store.unlink()
            (tmp_path / "away").rename(store)

    assert begin(tmp_path / "run", to(store), report=report) == whole()
    warnings = [one.message for one in caplog.records if one.levelno == logging.WARNING]
    assert len(warnings) == 2  # after steps 1 and 2
    assert warnings[0].startswith(f"checkpointing.copies: {store} is not up to date: [Errno ")
    assert warnings[0].endswith("; the next checkpoint tries again")
    whole_there = latest_good(store / "checkpoints")
    assert (whole_there.path.name, whole_there.refused) == ("step-000005", ())
    assert begin(tmp_path / "other", to(store)) == whole()


@pytest.mark.slow
def test_a_key_that_is_added_later_copies_what_the_run_has_by_then(tmp_path, begin, whole):
    url = f"memory://{uuid4()}"
    with pytest.raises(KilledError):
        begin(tmp_path / "lost", report=killed_after(2))
    with pytest.raises(KilledError):
        begin(tmp_path / "lost", to(url), report=killed_after(3))
    assert begin(tmp_path / "other", to(url)) == whole()


@pytest.mark.slow
def test_a_fetch_that_was_cut_off_is_done_again(tmp_path, begin, whole):
    url = f"memory://{uuid4()}"
    begin(tmp_path / "other", to(url))
    (tmp_path / "other" / ".fetching").touch()
    shutil.rmtree(tmp_path / "other" / "base")
    assert begin(tmp_path / "other", to(url)) == whole()
    assert not (tmp_path / "other" / ".fetching").exists()


@pytest.mark.slow
def test_no_key_of_a_copy_leads_out_of_the_folder(tmp_path, begin, whole):
    url = f"memory://{uuid4()}/run"
    with pytest.raises(KilledError):
        begin(tmp_path / "lost", to(url), report=killed_after(2))
    store, root = fsspec.url_to_fs(url)
    store.pipe_file(f"{root}/../planted", b"")
    assert begin(tmp_path / "runs" / "other", to(url)) == whole()
    assert not (tmp_path / "runs" / "planted").exists()


@pytest.mark.promise(
    "Bad input", "A URL for the copies of a run that cannot be written to: the key and the reason"
)
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("nothing://run", "cannot be written to: Protocol not known: nothing; correct the URL"),
        ("gs://bucket/run", "cannot be written to: Please install gcsfs to access Google Storage"),
        ("file:///proc/nothing", "cannot be written to: [Errno 2] No such file or directory"),
    ],
)
def test_a_url_that_cannot_be_written_to_is_refused_before_anything_is_trained(
    tmp_path, begin, url, reason
):
    with pytest.raises(RecipeError) as refused:
        begin(tmp_path / "run", to(url))
    assert str(refused.value).startswith(f"checkpointing.copies: {url} {reason}")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_a_copy_of_another_run_is_refused_and_left_as_it_is(tmp_path, begin):
    url = f"memory://{uuid4()}"
    with pytest.raises(KilledError):
        begin(tmp_path / "run", to(url), report=killed_after(1))
    store, root = fsspec.url_to_fs(url)
    before = store.find(root, detail=True)
    with pytest.raises(
        RecipeError, match=r"other seed\); choose another checkpointing\.copies, or"
    ):
        begin(tmp_path / "other", to(url), "seed=4")
    assert store.find(root, detail=True) == before
    assert [path.name for path in (tmp_path / "other").iterdir()] == [".lock"]


@pytest.mark.slow
def test_a_copy_replaces_nothing_of_a_folder_that_is_no_run(tmp_path, begin):
    url = f"memory://{uuid4()}"
    with pytest.raises(KilledError):
        begin(tmp_path / "run", to(url), report=killed_after(1))
    mine = tmp_path / "other" / "base" / "config.json"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(RecipeError, match="is no training run, and has a base that a run would"):
        begin(tmp_path / "other", to(url))
    assert mine.read_text() == "mine"
