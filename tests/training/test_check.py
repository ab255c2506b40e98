import asyncio
import json
import tomllib
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from support.openai_server import serving
from support.small_runs import run, save_prompts, save_recipe, save_validation
from waltzrl.errors import InputError
from waltzrl.evaluation.judges.formats import FORMATS
from waltzrl.foundation.jsonl import write_lines
from waltzrl.policies.scripted import ScriptedPolicy
from waltzrl.records import Collaboration, Demonstration, Message, Prompt, Reply
from waltzrl.training.check import Node, check_training
from waltzrl.training.judging import require_judge
from waltzrl.training.plan import SHAPES
from waltzrl.training.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
QWEN = RECIPES / "qwen-7b-8xh100.toml"


@pytest.fixture
def shown(tmp_path):
    """A change of a recipe, so that its warm-up has one demonstration."""
    prompt = Prompt(id="1", messages=(Message(role="user", content="Hello"),), label="benign")
    answered = Collaboration(prompt=prompt, draft=Reply(text="Hello"))
    path = tmp_path / "demonstrations.jsonl"
    write_lines(path, [Demonstration(collaboration=answered)])
    return [f"data.demonstrations={[str(path)]}"]


@pytest.fixture
def offline(tmp_path, shown):
    """Changes of a recipe, so that nothing is read but a few prompts."""
    return [
        *shown,
        f"data.prompts={[str(save_prompts(tmp_path / 'prompts.jsonl'))]}",
        "data.held_out=[]",
        f"data.validation={[str(save_validation(tmp_path / 'validation.jsonl'))]}",
        "judge=refusal",
    ]


def found(recipe, node=None):
    checked = asyncio.run(check_training(recipe, node))
    return {finding.what: finding for finding in checked.findings}, checked


@pytest.mark.promise("Requirements", "training on one node of eight H100, and whether it fits")
@pytest.mark.promise(
    "Training",
    "`waltzrl train --check --node` says whether a run fits a machine that is elsewhere, and what "
    "to change if it does not",
)
def test_qwen_as_adapters_fits_eight_gpus_of_80_gb_and_as_full_models_does_not(offline):
    node = Node.parse("8xH100-80GB")
    assert (node.gpus, node.gpu_gigabytes) == (8, 80 * 2**30 / 1e9)
    findings, checked = found(load_recipe(QWEN, offline), node)
    assert checked.ready
    base, decoding, _ = checked.plan.memory
    # 28 layers of 233,057,792, two embeddings of 152,064 x 3,584, and the last norm
    assert base.parameters == decoding.parameters == 7_615_616_512
    assert (checked.plan.ranks, checked.plan.device) == (8, "cuda")
    assert findings["host memory"].state == "unknown"
    assert findings["host memory"].detail == "244 GB for 8 ranks"  # 8 x 7.6e9 x 4 B

    full = load_recipe(RECIPES / "qwen-7b-8xh100-full.toml", offline)
    findings, checked = found(full, node)
    assert not checked.ready
    assert findings["GPU memory"].state == "not ready"
    assert "GB; set models.layout = " in findings["GPU memory"].detail
    assert found(full, Node.parse("8xH200-141GB"))[1].ready


@pytest.mark.parametrize("text", ["H100", "8xH100", "0xH100-80GB", "8xH100-80", "8x-80GB"])
def test_a_node_of_another_form_is_refused(text):
    with pytest.raises(InputError, match="form 8xH100-80GB"):
        Node.parse(text)


def test_a_base_that_nobody_knows_is_not_planned_with_the_shape_of_another(offline):
    recipe = load_recipe(QWEN, [*offline, "models.base=nobody/nothing-7b"])
    findings, checked = found(recipe, Node.parse("8xH100-80GB"))
    assert findings["base"].state == "not ready"
    assert "nobody/nothing-7b is not here" in findings["base"].detail
    assert "GPU memory" not in findings
    assert not checked.ready


@pytest.mark.parametrize(
    ("base", "billions"),  # as their model cards round them
    [
        ("meta-llama/Llama-3.1-8B-Instruct", 8.03),
        ("meta-llama/Llama-3.3-70B-Instruct", 70.6),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.49),
        ("Qwen/Qwen2.5-1.5B-Instruct", 1.54),
        ("Qwen/Qwen2.5-7B-Instruct", 7.61),
    ],
)
def test_a_known_shape_has_the_parameters_that_its_authors_state(base, billions):
    shape = tomllib.loads(SHAPES.read_text("utf-8"))[base]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert parameters / 1e9 == pytest.approx(billions, rel=0.01)


def test_a_missing_file_is_named_with_the_page_that_has_it(shown):
    findings, checked = found(
        load_recipe(QWEN, [*shown, "judge=refusal"]), Node.parse("8xH100-80GB")
    )
    assert not checked.ready
    detail = findings["data.validation"].detail
    assert "data/xstest/xstest_prompts.csv" in detail
    assert "https://github.com/paul-rottger/xstest" in detail
    assert findings["GPU memory"].state == "ready"  # planned with the generator's prompts


def test_a_judge_is_asked_and_one_that_is_away_or_unreadable_is_not_ready(tmp_path):
    path = save_recipe(tmp_path)
    answers = iter(("I cannot say.", "Safety: Safe\nCategories: None\nRefusal: No"))
    with serving({"m": ScriptedPolicy(lambda _messages: next(answers))}) as server:
        recipe = load_recipe(path, [f"judge=qwen3guard:m@{server.base_url}"])
        judges = [found(recipe)[0]["judge"] for _ in range(2)]
    assert [judge.state for judge in judges] == ["not ready", "ready"]
    assert "of 2 + 2 it says 'I cannot say.'" in judges[0].detail
    assert judges[1].detail.startswith("qwen3guard")
    findings, _ = found(load_recipe(path, ["judge=llm:m@http://127.0.0.1:9/v1"]))
    assert findings["judge"].state == "not ready"
    assert "127.0.0.1:9" in findings["judge"].detail


@pytest.mark.parametrize("kind", FORMATS)
def test_no_kind_of_judge_takes_an_answer_that_says_nothing(kind):
    with (
        serving({"m": ScriptedPolicy(lambda _messages: "~")}) as server,
        pytest.raises(InputError, match="cannot be read: of 2 \\+ 2 it says '~'"),
    ):
        asyncio.run(require_judge(f"{kind}:m@{server.base_url}"))


def test_a_judge_is_asked_anew_by_every_run(monkeypatch, tmp_path):
    monkeypatch.setenv("WALTZRL_JUDGE_CACHE", str(tmp_path / "answers.sqlite"))
    asked = []

    def answer(messages):
        asked.append(messages)
        return "Safety: Safe\nCategories: None\nRefusal: No"

    with serving({"m": ScriptedPolicy(answer)}) as server:
        for count in (1, 2):
            asyncio.run(require_judge(f"qwen3guard:m@{server.base_url}"))
            assert len(asked) == count


def test_a_model_from_scratch_needs_no_base_and_its_demonstrations_are_looked_for(offline):
    scratch = load_recipe(RECIPES / "generated.toml", offline)
    findings, checked = found(scratch)
    assert checked.ready
    assert findings["base"].detail.startswith("made from scratch")
    assert findings["data.demonstrations"].detail == "1"
    missing = [*offline, "data.demonstrations=['nowhere.jsonl']"]
    findings, checked = found(load_recipe(RECIPES / "generated.toml", missing))
    assert not checked.ready
    assert "nowhere.jsonl" in findings["data.demonstrations"].detail
    assert "plan" not in findings


def test_validation_prompts_of_one_kind_are_not_ready(tmp_path):
    recipe = load_recipe(
        save_recipe(tmp_path), [f"data.validation={[str(tmp_path / 'one.jsonl')]}"]
    )
    prompt = Prompt(id="1", messages=(Message(role="user", content="Why?"),), label="benign")
    write_lines(tmp_path / "one.jsonl", [prompt])
    findings, checked = found(recipe)
    assert not checked.ready
    assert "0 unsafe and 1 benign" in findings["data.validation"].detail


@pytest.mark.promise("Training", "A judge that is away is noticed before anything is loaded")
def test_a_run_whose_judge_is_away_ends_before_it_loads_a_model(tmp_path, capsys):
    recipe = save_recipe(tmp_path)
    settings = ["--set", "judge=llm:m@http://127.0.0.1:9/v1", "--set", "models.base=nobody/nothing"]
    assert run("train", recipe, "--out", tmp_path / "run", *settings) != 0
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_the_command_measures_a_pilot_where_all_is_ready(tmp_path, capsys):
    recipe = save_recipe(tmp_path)
    assert run("train", recipe, "--check", "--json", "--set", "budget.usd_per_hour=2") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ready"]
    assert told["cost"]["hours"]["expected"] > 0
    assert run("train", recipe, "--check", "--set", "models.base=nobody/nothing") == 1
    assert "not ready" in capsys.readouterr().out


def test_where_a_run_is_shown_and_copied_is_looked_for(tmp_path):
    store = tmp_path / "store"
    settings = ["wandb_project=mine", f"checkpointing.copies={store}"]
    findings, checked = found(load_recipe(save_recipe(tmp_path), settings))
    assert checked.ready
    assert findings["wandb_project"].detail == "mine"
    assert findings["checkpointing.copies"].detail == f"{store} can be written to"
    assert list(store.iterdir()) == []
    findings, checked = found(
        load_recipe(tmp_path / "recipe.toml", ["checkpointing.copies=no://run"])
    )
    assert not checked.ready
    assert "Protocol not known: no; correct" in findings["checkpointing.copies"].detail
