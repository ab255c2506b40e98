from pathlib import Path

import pytest
import torch

from support.small_runs import save_prompts, save_validation
from support.tiny_models import tiny_model
from waltzrl.agents.exports import ROLES
from waltzrl.errors import RecipeError
from waltzrl.foundation.jsonl import write_lines
from waltzrl.policies.compute import resolve_compute
from waltzrl.policies.weights import add_adapters, role_parameters
from waltzrl.records import Collaboration, Demonstration, Message, Prompt, Reply
from waltzrl.training.models import make_roles
from waltzrl.training.opening import plan_training
from waltzrl.training.plan import space_out
from waltzrl.training.recipe import load_recipe

RECIPES = Path(__file__).parents[2] / "recipes"
TINY = RECIPES / "tiny.toml"
GENERATED = [
    'data.prompts=["generator:train"]',
    'data.held_out=["generator:test"]',
    'data.validation=["generator:validation"]',
]


@pytest.fixture
def few(tmp_path):
    """Changes of a recipe: a few prompts and a demonstration, which are read quickly."""
    prompt = Prompt(id="1", messages=(Message(role="user", content="Hello"),), label="benign")
    answered = Collaboration(prompt=prompt, draft=Reply(text="Hello"))
    write_lines(tmp_path / "demonstrations.jsonl", [Demonstration(collaboration=answered)])
    return [
        f"data.prompts={[str(save_prompts(tmp_path / 'prompts.jsonl'))]}",
        f"data.held_out={[str(save_validation(tmp_path / 'validation.jsonl'))]}",
        f"data.validation={[str(tmp_path / 'validation.jsonl')]}",
        f"data.demonstrations={[str(tmp_path / 'demonstrations.jsonl')]}",
    ]


def parts(plan):
    return {part.what: (part.parameters, part.bytes_each) for part in plan.memory}


def test_two_8b_models_take_what_arithmetic_says():
    # 2 x 8.03e9 x 16 B learn, 8.03e9 x 2 B is frozen, 2 x 8.03e9 x 2 B decode in bfloat16.
    plan = plan_training(load_recipe(RECIPES / "llama-8b.toml", GENERATED))
    models = sum(part.gigabytes for part in plan.memory)
    assert models == pytest.approx(8.030261248 * (32 + 2 + 4))
    assert [(stage.steps, stage.turns) for stage in plan.stages] == [
        (438, 438 * 32),  # 14,014 prompts, 32 a step
        (2190, 2190 * 32),
    ]
    assert plan.stages[0].most_tokens == 438 * 32 * 3 * 512  # draft, feedback, revision


@pytest.mark.promise("Training", "Two adapters on an 8B base fit on a GPU of 80 GB by the plan")
def test_two_adapters_on_one_8b_base_fit_on_a_gpu_of_80_gb(few):
    plan = plan_training(load_recipe(RECIPES / "llama-8b-adapters.toml", few))
    models = sum(part.gigabytes for part in plan.memory)
    # 8.03e9 x 2 B twice: the base, and the copy that decodes with an adapter merged; and 2 adapters
    # of 32 x 2,621,440 = 83.9e6 parameters x 16 B
    assert models == pytest.approx(2 * 16.060522496 + 2 * 0.08388608 * 16)
    # 32 rows of a context and 512 tokens, 2 x 32 layers x 8 heads x 128 x 2 B each, and logits
    cache = 32 * (plan.context_tokens + 512) * 131_072 + 4 * 32 * 128_256 * 4
    assert plan.rollout_gigabytes == pytest.approx(cache / 1e9)
    libraries = plan.libraries_gigabytes  # on this machine: a GPU's memory has none
    assert libraries == (0 if plan.device == "cuda" else 0.46)
    updating, sampling = plan.update_gigabytes, plan.rollout_gigabytes
    assert plan.gigabytes == libraries + models + max(updating, sampling) < 80


def test_prompts_of_a_usual_step_are_of_all_lengths():
    assert space_out([50, 10, 40, 20, 30, 60], 3) == [20, 40, 60]
    assert space_out([7, 9], 4) == [7, 7, 9, 9]


@pytest.mark.promise(
    "Training",
    "`--dry-run` plans the memory of each rank, and a number of ranks that does not divide "
    "`prompts_per_step` is refused with those that do",
)
def test_each_of_eight_ranks_has_an_eighth_of_the_models_and_whole_copies(monkeypatch, few):
    monkeypatch.setenv("WORLD_SIZE", "8")
    plan = plan_training(load_recipe(RECIPES / "llama-8b.toml", few[:3]))
    assert plan.ranks == 8
    total, layer = 8_030_261_248, 218_112_000  # of 32 layers
    assert parts(plan) == {
        "two models that learn": (2 * total // 8, 16),
        "reference, frozen": (total // 8, 2),
        "copies that decode": (2 * total, 2),
        "put together for a pass": (total - 30 * layer, 8),
    }
    replaying = [*few[:3], "stages.feedback.replayed_share=0.5"]  # the reference drafts, whole
    plan = plan_training(load_recipe(RECIPES / "llama-8b.toml", replaying))
    assert parts(plan)["reference, frozen"] == (total, 2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(RecipeError, match=r"^3 processes .* 32 and 32 evenly; start 1 or 2 or 4 "):
        plan_training(load_recipe(RECIPES / "llama-8b.toml", few[:3]))


def test_more_learners_than_collaborations_are_planned(tmp_path, few):
    tiny_model().model.config.save_pretrained(tmp_path)
    workers = ["compute.engine=ray", "compute.ray.workers=1", "compute.ray.learners=3"]
    steps = ["stages.feedback.prompts_per_step=2", "stages.joint.prompts_per_step=2"]
    settings = [f"models.base={tmp_path}", *few, *workers, *steps]
    plan = plan_training(load_recipe(TINY, settings))
    assert plan.ranks == 3
    assert plan.update_gigabytes > 0


def test_a_longest_context_holds_the_prompt_and_every_round(few):
    two, one = (
        plan_training(load_recipe(TINY, [*few, *settings]))
        for settings in (
            ["agents.max_rounds=2", "agents.feedback_max_new_tokens=16"],
            ["agents.max_rounds=1", "agents.feedback_max_new_tokens=16"],
        )
    )
    assert two.context_tokens - one.context_tokens == 64 + 16


@pytest.mark.parametrize("family", ["qwen2", "llama", "gemma"])
def test_a_local_model_is_counted_without_loading_its_weights(tmp_path, few, family):
    causal_lm = tiny_model(family)
    causal_lm.model.config.save_pretrained(tmp_path)  # no weights beside it
    total = sum(parameter.numel() for parameter in causal_lm.model.parameters())
    settings = [f"models.base={tmp_path}", *few]
    full = plan_training(load_recipe(RECIPES / "tiny.toml", settings))
    assert parts(full) == {
        "two models that learn": (2 * total, 16),
        "reference, frozen": (total, 4),
    }
    shared = add_adapters(causal_lm, ROLES, rank=8)
    learning = sum(p.numel() for _, p in role_parameters(shared.model, "feedback"))
    plan = plan_training(load_recipe(RECIPES / "tiny.toml", [*settings, "models.layout=adapters"]))
    assert parts(plan)["two adapters"] == (2 * learning, 16)


def test_a_pair_that_goes_on_has_a_reference_for_each_role(tmp_path, few):
    causal_lm = tiny_model()
    causal_lm.model.config.save_pretrained(tmp_path / "waltzrl_conversation_stage2")
    total = sum(parameter.numel() for parameter in causal_lm.model.parameters())
    settings = [f"models.pair={tmp_path}", *few, "compute.device=cpu"]
    plan = plan_training(load_recipe(RECIPES / "continue.toml", settings))
    assert parts(plan)["two references, frozen"] == (2 * total, 4)


def test_a_base_of_unknown_size_is_planned_without_its_memory(few):
    settings = ["models.base=nobody/nothing-7b", *few]
    plan = plan_training(load_recipe(RECIPES / "tiny.toml", settings))
    assert plan.gigabytes is None
    assert [stage.steps for stage in plan.stages] == [30, 10, 10]


@pytest.mark.parametrize("layout", ["two-models", "adapters", "one-model"])
def test_what_learns_is_float32_and_what_is_frozen_is_as_wide_as_planned(layout):
    settings = ["compute.dtype=bfloat16", "compute.device=cpu", f"models.layout={layout}"]
    recipe = load_recipe(RECIPES / "tiny.toml", settings)
    compute = resolve_compute(recipe.compute)
    team = make_roles(recipe.models, recipe.agents, tiny_model(), compute, recipe.seed)
    for weights in team.weights.values():
        learning = role_parameters(weights.causal_lm.model, weights.adapter)
        assert {parameter.dtype for _, parameter in learning} == {torch.float32}
    frozen = team.roles["conversation"].reference.causal_lm.model
    assert {p.dtype for p in frozen.parameters() if not p.requires_grad} == {torch.bfloat16}
    rotary = dict(tiny_model().model.named_buffers())["model.rotary_emb.inv_freq"]
    for name, buffer in frozen.named_buffers():
        if name.endswith("rotary_emb.inv_freq"):
            assert torch.equal(buffer, rotary)


def test_one_model_in_both_roles_has_two_optimisers(tmp_path, few):
    causal_lm = tiny_model()
    causal_lm.model.config.save_pretrained(tmp_path)
    total = sum(parameter.numel() for parameter in causal_lm.model.parameters())
    settings = [f"models.base={tmp_path}", *few, "models.layout=one-model"]
    plan = plan_training(load_recipe(RECIPES / "tiny.toml", settings))
    # weight and gradient, and two moments in each role: 4 + 4 + 2 x 8 bytes
    assert parts(plan) == {"one model that learns": (total, 24), "reference, frozen": (total, 4)}
