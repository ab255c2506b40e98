import json

import msgspec
import pytest

from support.small_runs import run, save_model
from waltzrl.policies.compute import resolve_compute
from waltzrl.records import Collaboration, Demonstration, Message, Prompt, Reply, ToolCall
from waltzrl.training.recipe import load_recipe
from waltzrl.training.warm_up import WarmUp

RECIPE = """
seed = 3
[models]
base = "{base}"
layout = "{layout}"
rank = 2
[data]
demonstrations = ["{demonstrations}"]
held_out = {held_out}
[agents]
wording = "tiny"
max_new_tokens = 6
[compute]
device = "cpu"
threads = 1
[[stages]]
name = "warm-up"
kind = "imitation"
steps = 3
batch_size = 2
optimizer = {{ learning_rate = 1e-3, warmup_steps = 0 }}
"""


def write(folder, layout, held_out=()):
    demonstrations = folder / "demonstrations.jsonl"
    prompt = Prompt(id="p", messages=(Message(role="user", content="How do I bake bread?"),))
    shown = Demonstration(collaboration=Collaboration(prompt=prompt, draft=Reply(text="Use heat.")))
    demonstrations.write_bytes(msgspec.json.encode(shown) + b"\n")
    recipe = folder / "recipe.toml"
    base = save_model(folder / "model")
    recipe.write_text(
        RECIPE.format(
            base=base, layout=layout, demonstrations=demonstrations, held_out=json.dumps(held_out)
        )
    )
    return recipe


@pytest.mark.promise("Specialists", "A run of imitation alone leaves a checkpoint and an export")
@pytest.mark.parametrize("layout", ["adapters", "one-model"])
def test_a_run_of_imitation_alone_leaves_a_checkpoint_and_an_export(tmp_path, capsys, layout):
    recipe, out = write(tmp_path, layout), tmp_path / "run"
    agents, again = tmp_path / "agents", tmp_path / "again"
    assert run("train", recipe, "--out", out, "--export", agents, "--json") == 0
    weights = json.loads(capsys.readouterr().out)["weights"]
    assert list(weights) == ["conversation", "feedback"]
    assert len(set(weights.values())) == 1  # nothing has told them apart yet
    assert (out / "warm-up" / "checkpoints" / "step-000003").is_dir()
    parts = {path.name for path in agents.iterdir()}
    agents_of_both = {"waltzrl_conversation_stage2", "waltzrl_feedback_stage2"}
    assert parts == {*agents_of_both, "manifest.json", "wording"} | (
        {"adapters"} if layout == "adapters" else set()
    )
    assert run("train", recipe, "--out", out, "--json") == 0  # nothing is left to do
    assert json.loads(capsys.readouterr().out)["weights"] == weights
    assert run("export", out, again) == 0
    assert (again / "manifest.json").read_bytes() == (agents / "manifest.json").read_bytes()


def test_a_demonstration_that_is_held_out_stops_a_run_of_imitation_alone(tmp_path, capsys):
    held_out = tmp_path / "test.jsonl"
    held_out.write_text('{"prompt": "how do I bake BREAD"}\n')
    recipe = write(tmp_path, "adapters", [str(held_out)])
    assert run("train", recipe, "--out", tmp_path / "run") == 2
    assert "1 of 1 test prompts are in the training prompts" in capsys.readouterr().err


def test_a_base_that_is_made_knows_the_words_of_a_conversation_as_a_review_shows_it(tmp_path):
    call = ToolCall(id="1", name="search", arguments="bread", kind="custom")
    turns = (
        Message(role="user", content="How do I bake bread?"),
        Message(role="assistant", content="", calls=(call,)),
        Message(role="tool", content="Use heat.", call_id="1"),
    )
    shown = Collaboration(prompt=Prompt(id="p", messages=turns), draft=Reply(text="Use heat."))
    recipe = load_recipe(write(tmp_path, "two-models"), ["models.base={hidden=8, heads=2}"])
    warm_up = WarmUp(
        recipe=recipe,
        folder=tmp_path / "run",
        compute=resolve_compute(recipe.compute),
        demonstrations=[Demonstration(collaboration=shown)],
    )
    tokenizer = warm_up.open_base().tokenizer
    pieces = [token for turn in turns for token in tokenizer.tokenize(turn.line)]
    # Only the backslash before the end of a call, whose quote and brace are one token.
    assert [token for token in pieces if token.startswith("<0x")] == ["<0x5C>"]
