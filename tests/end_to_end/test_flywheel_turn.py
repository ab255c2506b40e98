"""`waltzrl flywheel` on a tiny pair, from labelled requests in a memory to a release."""

import json

import msgspec
import pytest

from support.small_evaluations import ANSWER, evaluation, remember, said
from support.small_runs import RECIPE, run, save_recipe
from waltzrl.agents.calibration import CALIBRATION, UNCALIBRATED, write_calibration
from waltzrl.agents.rules import load_rulebook
from waltzrl.evaluation.collecting.selection import Selection
from waltzrl.foundation.validation import validate_table
from waltzrl.gateway.bundles import describe_bundle
from waltzrl.gateway.pairs import pair_settings
from waltzrl.gateway.settings import BundleRecipe, bundle_table
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.store.database import open_database
from waltzrl.store.memory.labels import LabelEvent

SUBJECT = next(
    f"{n:x}" for n in range(100) if Selection().takes(evaluation(said(ANSWER), subject=f"{n:x}"))
)
WORDS = ("bread", "locks", "eggs", "dogs", "lamps", "Linux", "tea", "bombs", "knives", "wires")
FEW_STEPS = (
    "stages.feedback.steps=0",
    "stages.joint.steps=1",
    "stages.joint.optimizer.learning_rate=1e-7",  # so little that the gate sees no difference
)


@pytest.fixture
def site(tmp_path, sqlite_url):
    """A pair that serves, three labelled requests, a hundred held-out prompts, and a recipe."""
    first = save_recipe(tmp_path)
    pair = tmp_path / "agents"
    steps = ("--set", "stages.joint.steps=1", "--export", pair)
    assert run("train", first, "--out", tmp_path / "first", *steps) == 0
    harmless = LabelEvent(by="ada", time=1.0, request="harmless")
    remember(
        sqlite_url,
        [
            evaluation(said(ANSWER, asked=text), id=text, subject=SUBJECT, time=1.0).labelled(
                harmless
            )
            for text in ("How long do I boil eggs?", "Which tea is best?", "What is bread?")
        ],
    )
    serving = validate_table(BundleRecipe, pair_settings(pair, with_upstream=True), "pair")
    engine = open_database(sqlite_url)
    id_, description = describe_bundle(serving, load_rulebook(serving.rules))
    table = msgspec.json.encode(bundle_table(serving)).decode()
    ReleaseBook(engine).add_bundle(id_, table, description, is_base=True)
    held_out = tmp_path / "held-out.jsonl"
    lines = [
        {"prompt": f"{one} {other} {label}?", "label": label}
        for label in ("unsafe", "benign")
        for one in WORDS
        for other in WORDS[:5]
    ]
    held_out.write_text("\n".join(map(json.dumps, lines)) + "\n")
    train = tmp_path / "continue.toml"
    own = RECIPE.format(base="replaced", prompts=tmp_path / "prompts.jsonl")
    train.write_text(own.replace("base =", "pair ="))
    recipe = tmp_path / "turn.toml"
    recipe.write_text(
        f'memory = "{sqlite_url}"\ntrain = "{train}"\nsets = ["{held_out}"]\n'
        f"train_settings = {json.dumps(FEW_STEPS)}\nfewest_prompts = 3\n"
    )
    yield recipe, ReleaseBook(engine)
    engine.dispose()


@pytest.mark.slow
@pytest.mark.timeout(600)  # three processes that load torch
def test_a_turn_ends_with_a_release_in_its_shadow(site, tmp_path, capfd, caplog):
    recipe, book = site
    out = tmp_path / "turn"
    assert run("flywheel", recipe, "--out", out) == 0
    planned = capfd.readouterr().out
    assert planned.startswith("# 3 labelled prompts in the memory, 3 are needed\nwaltzrl train ")
    assert not out.exists()
    write_calibration(tmp_path / "agents/waltzrl_feedback_stage2" / CALIBRATION, UNCALIBRATED)
    assert run("flywheel", recipe, "--out", out) == 0
    assert "is calibrated, and the pair trained on it would not be" in caplog.text
    (tmp_path / "agents/waltzrl_feedback_stage2" / CALIBRATION).unlink()
    capfd.readouterr()
    judged = "calibration=['chosen.jsonl', 'held.jsonl']"
    assert run("flywheel", recipe, "--out", out, "--set", judged) == 0
    model = f"{out}/agents/waltzrl_feedback_stage2"
    said = capfd.readouterr().out
    steps = [line.split()[1] for line in said.splitlines() if line.startswith("waltzrl")]
    assert steps == ["train", "calibrate", "evaluate", "evaluate", "release"]
    assert f"waltzrl calibrate chosen.jsonl held.jsonl --model {model} --set wording=" in said
    assert run("flywheel", recipe, "--out", out, "--run", "--set", "fewest_prompts=4") == 0
    assert capfd.readouterr().out.startswith("nothing was trained: 3 labelled prompts")
    assert book.latest() is None
    assert run("flywheel", recipe, "--out", out, "--run") == 0
    release = book.latest()
    assert release.state == "shadow"
    assert f'"{out}/agents/waltzrl_feedback_stage2"' in book.bundle(release.candidate)
    assert "no worse offline" in book.history(release.id)[0].why
    assert run("flywheel", recipe, "--out", out) == 2
    assert f"release {release.id} is under way" in capfd.readouterr().err
    book.move(release, "roll_back", "ada", "complaints")
    assert run("flywheel", recipe, "--out", out, "--run") == 2
    assert f"release {release.id} of this pair was rolled back" in capfd.readouterr().err
    fails = ("--run", "--set", 'train_settings=["stages.joint.steps=none"]')
    assert run("flywheel", recipe, "--out", tmp_path / "other", *fails) == 2
    assert "stopped: this ended with 2" in capfd.readouterr().out
