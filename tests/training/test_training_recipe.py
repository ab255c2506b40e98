import json
import re
from pathlib import Path

import pytest

from waltzrl.errors import InputError, RecipeError
from waltzrl.foundation.validation import validate_table, with_overrides, yield_keys
from waltzrl.training.recipe import Recipe, load_recipe, recipe_json
from waltzrl.training.rewards import REWARDS
from waltzrl.training.synonyms import SYNONYMS

RECIPES = Path(__file__).parents[2] / "recipes"
SPARSE = """
seed = 0
models = { base = "somewhere", layout = "adapters" }
data.prompts = ["prompts.jsonl"]
agents.max_new_tokens = 8

[[stages]]
kind = "reinforcement"
name = "joint"
learns = ["feedback"]
steps = 3
optimizer.learning_rate = 1e-3
"""
BASE_OR_PAIR = (
    "models needs either base or pair: what both agents start from, or each; both only with layout"
    " adapters, where base says where that of the pair's adapters is"
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "sparse.toml"
    path.write_text(SPARSE)
    return path


def complaint(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


OTHER = ("forecast", "gateway", "quarterly", "roi", "routing")
TRAINING = sorted(path for path in RECIPES.glob("*.toml") if path.stem not in OTHER)


@pytest.mark.parametrize("path", TRAINING, ids=lambda path: path.stem)
def test_every_recipe_of_the_project_is_read_and_written_as_json(path):
    recipe = load_recipe(path)
    again = json.loads(json.dumps(recipe_json(recipe)))
    assert validate_table(Recipe, again, "again") == recipe


def test_agents_are_validated_in_the_pattern_of_the_last_stage_that_has_steps():
    def validated_stage(*changes):
        stage = load_recipe(RECIPES / "smollm2.toml", changes).validated_stage
        return stage.name, stage.pattern

    no_feedback, no_joint = "stages.feedback.steps=0", "stages.joint.steps=0"
    assert validated_stage() == ("joint", "collaborate")
    assert validated_stage(no_joint) == ("feedback", "collaborate")
    assert validated_stage(no_joint, no_feedback) == ("drafts", "draft-only")
    assert validated_stage(no_joint, no_feedback, "stages.drafts.steps=0")[0] == "joint"
    in_epochs = load_recipe(RECIPES / "llama-8b.toml")
    assert in_epochs.validated_stage == in_epochs.reinforcements[-1]


@pytest.mark.promise(
    "Training",
    "The recipes hold the paper's setting, with an LLM judge and real files, and ours for a pair "
    "that goes on",
)
def test_the_papers_setting_is_in_the_8b_recipe():
    recipe = load_recipe(RECIPES / "llama-8b.toml")
    feedback, joint = recipe.reinforcements
    assert recipe.models.base == "meta-llama/Llama-3.1-8B-Instruct"
    assert recipe.models.layout == "two-models"
    assert (recipe.agents.max_rounds, recipe.agents.max_new_tokens) == (1, 512)
    assert feedback.learns == ("feedback",)
    assert joint.learns == ("conversation", "feedback")
    assert joint.epochs == 5
    assert recipe.judge == "llm:meta-llama/Llama-3.3-70B-Instruct@http://127.0.0.1:8000/v1"
    assert recipe.data.prompts == (
        "wildjailbreak:data/wildjailbreak/train.tsv",
        "or-bench:data/or-bench/or-bench-80k.csv",
    )
    assert recipe.data.held_out == ("wildjailbreak:data/wildjailbreak/eval.tsv",)
    assert recipe.data.validation == ("xstest:data/xstest/xstest_prompts.csv",)
    assert (feedback.coefficients.label, joint.coefficients.label) == (0.65, 0.0)
    for stage in (feedback, joint):
        assert stage.optimizer.learning_rate == 5e-7
        assert (stage.coefficients.improvement, stage.coefficients.format) == (0.65, 0.1)
        assert (stage.algorithm.kl_weight, stage.algorithm.clip_low) == (0.01, 0.2)
        assert (stage.prompts_per_step, stage.reward) == (32, "paper")
        assert stage.algorithm.aggregation == "sequence"


@pytest.mark.promise(
    "Training",
    "The recipes hold the paper's setting, with an LLM judge and real files, and ours for a pair "
    "that goes on",
)
def test_a_pair_goes_on_with_our_reward_its_label_term_and_replayed_drafts():
    (joint,) = load_recipe(RECIPES / "continue.toml").reinforcements
    assert joint.learns == ("conversation", "feedback")
    assert (joint.reward, joint.coefficients.label, joint.replayed_share) == ("signed", 0.65, 0.5)


def test_overrides_reach_every_depth_and_the_last_one_wins(path):
    recipe = load_recipe(
        path,
        [
            "seed=1",
            "seed=2",
            "models.base=/models/a=b",
            "stages.joint.optimizer.learning_rate=5e-4",
            'stages.joint.learns=["conversation"]',
            "compute.threads=1",
        ],
    )
    assert recipe.seed == 2
    assert recipe.models.base == "/models/a=b"
    assert recipe.reinforcements[0].optimizer.learning_rate == 5e-4
    assert recipe.reinforcements[0].learns == ("conversation",)
    assert recipe.compute.threads == 1


def test_a_folder_takes_the_place_of_a_model_made_from_scratch():
    tiny = load_recipe(RECIPES / "tiny.toml", ["models.base=models/qwen"])
    assert tiny.models.base == "models/qwen"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("models.bas=x", "unknown key 'models.bas'; did you mean 'models.base'?"),
        ("stages.joint.group_sise=2", "unknown key 'stages.group_sise'; did you mean "
         "'stages.group_size'?"),
        ("stages.joint.optimizer.learning_rat=1", "unknown key 'stages.optimizer.learning_rat'; "
         "did you mean 'stages.optimizer.learning_rate'?"),
        ("learning_rate=1", "unknown key 'learning_rate'; did you mean "
         "'stages.optimizer.learning_rate'?"),
        ("kl_coefficient=1", "unknown key 'kl_coefficient'; did you mean "
         "'stages.algorithm.kl_weight'?"),
        ("stages.joint.clip-radius=1", "unknown key 'stages.clip-radius'; did you mean "
         "'stages.algorithm.clip_low' and 'stages.algorithm.clip_high'?"),
        ("output_dir=runs", "unknown key 'output_dir'; did you mean '--out'?"),
        ("stages.joint.batch_size=4", "unknown key 'stages.batch_size'; did you mean "
         "'stages.prompts_per_step'?"),
        ("zzz=1", "unknown key 'zzz'; delete it"),
        ("models.base={hiden=3}", "unknown key 'models.base.hiden'; did you mean "
         "'models.base.hidden'?"),
        ("stages.joint.group_size=many", "stages.group_size: got 'many', need a valid integer, "
         "unable to parse string as an integer"),
        ("models.layout=three", "models.layout: got 'three', need 'two-models', 'adapters' or "
         "'one-model'"),
        ("models.base=3", "models.base: got 3, need a valid string"),
        ('models={pair="agents", base="a", layout="two-models"}', BASE_OR_PAIR),
        ('models={layout="two-models"}', BASE_OR_PAIR),
        ('models={pair="agents", layout="one-model"}', "models.pair needs models.layout two-models "
         "or adapters: a pair is not one model"),
        ('models={pair="agents", layout="adapters", base={hidden=8}}', BASE_OR_PAIR),
        ("agents={}", "agents.max_new_tokens is missing; write it in the recipe or give "
         "--set agents.max_new_tokens=..."),
        ("stages.joint.kind=magic", "stages: each needs kind = 'imitation' or kind = "
         "'reinforcement'"),
        ('stages=[{kind="reinforcement", name="joint", learns=["feedback"], steps=1, epochs=2, '
         'optimizer={learning_rate=1e-3}}]', "stage 'joint' needs either steps or epochs"),
        ("stages.joint.learns=['feedback', 'feedback']",
         "stage 'joint': learns names feedback twice; name it once"),
        ("stages.joint.learns=[]", "in stage 'joint' no role learns; name at least one"),
        ("stages.joint.pattern=draft-only", "stage 'joint' has no feedback to learn from: "
         "draft-only"),
        ("stages.joint.algorithm.centre_groups=true", "stage 'joint': centre_groups needs a "
         "group_size of 2 or more"),
        ("stages=[]", "stages need names, each its own, got []"),
        ("stages.joint.steps=-1", "stages.steps: got -1, need greater than or equal to 0"),
        ("stages.joint.group_size=0", "stages.group_size: got 0, need greater than or equal to 1"),
        ("stages.joint.prompts_per_step=0", "stages.prompts_per_step: got 0, need greater than or "
         "equal to 1"),
        ("stages.joint.replayed_share=2", "stages.replayed_share: got 2, need less than or equal "
         "to 1"),
        ("stages.joint.optimizer.learning_rate=0", "stages.optimizer.learning_rate: got 0, need "
         "greater than 0"),
        ("stages.joint.optimizer.gradient_clip=0", "stages.optimizer.gradient_clip: got 0, need "
         "greater than 0"),
        ("stages.joint.optimizer.learning_rate=nan", "stages.joint.optimizer.learning_rate: got "
         "nan, need a finite number"),
        ("stages.joint.epochs=inf", "stages.joint.epochs: got inf, need a finite number"),
        ("checkpointing.kl_limit=-inf", "checkpointing.kl_limit: got -inf, need a finite number"),
        ("prices.guard={input=nan, output=1}", "prices.guard.input: got nan, need a finite number"),
        ("stages.joint.algorithm.kl_weight=-0.01", "stages.algorithm.kl_weight: got -0.01, need "
         "greater than or equal to 0"),
        ("stages.joint.algorithm.clip_low=-0.2", "stages.algorithm.clip_low: got -0.2, need "
         "greater than or equal to 0"),
        ("stages.joint.algorithm.clip_high=-0.2", "stages.algorithm.clip_high: got -0.2, need "
         "greater than or equal to 0"),
        ("stages.joint.algorithm.sigma_floor=0", "stages.algorithm.sigma_floor: got 0, need "
         "greater than 0"),
        ("stages.joint.algorithm.passes=0", "stages.algorithm.passes: got 0, need greater than or "
         "equal to 1"),
        ("checkpointing.keep_last=0", "checkpointing.keep_last: got 0, need greater than or equal "
         "to 1"),
        ("checkpointing.checkpoint_every=0", "checkpointing.checkpoint_every: got 0, need greater "
         "than or equal to 1"),
        ("agents.max_rounds=0", "agents.max_rounds = 0 leaves stage 'joint' no feedback to learn "
         "from; make it 1 or more, or let the stage learn conversation alone"),
        ("stages.joint.round_cost=0.1", "stage 'joint' has a round_cost, and no collaboration has "
         "a second round; set agents.max_rounds to 2 or more, got 1"),
        ("stages.joint.round_cost=-1", "stages.round_cost: got -1, need greater than or equal "
         "to 0"),
        ("stages.joint.optimizer.beta2=1", "stages.optimizer.beta2: got 1, need less than 1"),
        ("stages.joint.optimizer.final_share=2", "stages.optimizer.final_share: got 2, need less "
         "than or equal to 1"),
        ("stages.joint.optimizer.weight_decay=-1", "stages.optimizer.weight_decay: got -1, need "
         "greater than or equal to 0"),
        ("stages.joint.optimizer.warmup_steps=-1", "stages.optimizer.warmup_steps: got -1, need "
         "greater than or equal to 0"),
        ("stages.joint.optimizer.micro_batch_tokens=0", "stages.optimizer.micro_batch_tokens: got "
         "0, need greater than or equal to 1"),
        ("models.rank=0", "models.rank: got 0, need greater than or equal to 1"),
        ("models.base={hidden=10}", "hidden must be a multiple of twice the heads, and heads "
         "even or 1, got hidden 10 and heads 4"),
        ("models.base={layers=0}", "hidden, layers, heads and context of a model "
         "must be 1 or more"),
        ("agents.max_new_tokens=0", "agents.max_new_tokens: got 0, need greater than or equal "
         "to 1"),
        ("agents.max_rounds=-1", "agents.max_rounds: got -1, need greater than or equal to 0"),
        ("compute.threads=0", "compute.threads: got 0, need greater than or equal to 1"),
        ("data.limit=0", "data.limit: got 0, need greater than or equal to 1"),
        ("seed=-1", "seed: got -1, need greater than or equal to 0"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_key(path, override, message):
    assert complaint(path, override) == message


TRAINER = re.search(
    r"^\| Stage2TrainingConfig .*\n\| --- .*\n((?:\|.*\n)+)",
    (RECIPES.parent / "docs/requirements.md").read_text(),
    re.MULTILINE,
)[1]
WITHOUT = {"log_every_n_steps", "wandb_project", "use_rlt_optimization"}
"""Names whose row gives no key of ours; the last two are keys themselves."""


@pytest.mark.promise(
    "Bad input",
    "A key by the name that the requirement's documents or another trainer have for it: our key",
)
@pytest.mark.parametrize(
    "name",
    [
        name
        for row in TRAINER.splitlines()
        for name in row.split(" | ")[0].removeprefix("| ").split(", ")
        if name not in WITHOUT
    ],
)
def test_every_name_of_the_documents_leads_to_the_key_that_their_table_gives(path, name):
    (row,) = (row for row in TRAINER.splitlines() if re.search(rf"\b{name}\b", row))
    meant = re.findall(r"'([^']+)'", complaint(path, f"{name}=1").partition("did you mean")[2])
    assert meant
    assert all(re.search(rf"`{key.removeprefix('stages.')}`", row) for key in meant)


def test_every_synonym_is_of_a_key_that_there_is():
    assert SYNONYMS.keys() - {"--out"} <= set(yield_keys(Recipe))


def test_a_key_with_a_dot_is_set_in_quotes():
    table = with_overrides({}, ['prices."gpt-4.1"={input=2}', 'prices."a=b".output = 1'])
    assert table == {"prices": {"gpt-4.1": {"input": 2}, "a=b": {"output": 1}}}


@pytest.mark.parametrize("name", ["gpt-4.1", "Qwen2.5-7B", "granite-guardian-3.3-8b"])
def test_a_name_with_a_dot_is_told_to_need_quotes(path, name):
    wanted = f'a name with a dot needs quotes: prices."{name}"'
    assert wanted in complaint(path, f"prices.{name}={{input=1}}")


def test_an_override_needs_an_equals_sign_and_a_place(path):
    for nothing in ("seed", "=1", ".=1", 'seed"=1', "models..rank=1", '""=1', 'a."b"c=1'):
        wanted = f"--set {nothing}: need key=value, such as models.rank=8"
        assert complaint(path, nothing) == wanted
    assert "there is no table 'other'" in complaint(path, "stages.other.steps=1")
    assert "name the stage" in complaint(path, "stages.steps=1")
    with pytest.raises(RecipeError, match="there is no table 'crime' to set this in"):
        with_overrides({"rules": ["crime"]}, ["rules.crime.severity=1"])


def test_an_empty_key_is_unknown(path):
    assert complaint(path, 'agents={""=1}').startswith("unknown key 'agents.'; ")


def test_imitation_needs_demonstrations_and_comes_first(tmp_path):
    stage = (
        '[[stages]]\nkind = "imitation"\nname = "warm-up"\nsteps = 1\nbatch_size = 1\n'
        "optimizer.learning_rate = 1e-3\n"
    )
    path = tmp_path / "late.toml"
    path.write_text(SPARSE + stage)
    assert "stages of imitation and of a teacher come first" in complaint(path)
    path.write_text(SPARSE.replace("[[stages]]", stage + "[[stages]]", 1))
    assert complaint(path) == "a stage of imitation needs data.demonstrations"
    assert "teaches a base, and models.pair has none" in complaint(
        path,
        'data.demonstrations=["demonstrations.jsonl"]',
        'models={pair="agents", layout="two-models"}',
    )


@pytest.mark.promise("Evaluation", "A training by the judge `harm` is warned of")
def test_a_judge_that_punishes_help_is_warned_of(path, caplog):
    load_recipe(path, ["judge=refusal"])
    assert not caplog.messages
    load_recipe(path, ["judge=harm"])
    (said,) = caplog.messages
    assert "training with it punishes help; use refusal, or a judge with a model" in said


def test_a_role_that_is_not_known_is_refused(path):
    message = "stage 'joint': unknown role 'teacher'; known are conversation, feedback, attacker"
    assert complaint(path, 'stages.joint.learns=["feedback", "teacher"]') == message


def test_a_file_that_is_not_toml_is_named_with_its_line(tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text("seed = 0\n[models\n")
    assert "line 2" in complaint(path)


def test_a_missing_recipe_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml: No such file"):
        load_recipe(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", [*REWARDS, "my_rewards:gentle"])
def test_a_recipe_may_name_every_reward_and_a_function_of_ones_own(path, name):
    recipe = load_recipe(path, [f"stages.joint.reward={name}"])
    assert recipe.reinforcements[0].reward == name


@pytest.mark.promise(
    "Bad input",
    "A reward that there is not, or whose module cannot be imported: the stage or the reward, "
    "those that there are, or why it cannot be imported",
)
def test_a_reward_that_there_is_not_is_told_with_those_that_there_are(path):
    wanted = f"got the reward 'papr'; need {', '.join(REWARDS)}, the name of one that an"
    with pytest.raises(RecipeError, match=wanted):
        load_recipe(path, ["stages.joint.reward=papr"])


@pytest.mark.parametrize(
    ("rollouts", "servers"),
    [
        ("local", ()),
        ("vllm:http://a:8000", ("http://a:8000",)),
        ("vllm:http://a:8000,https://b/v1", ("http://a:8000", "https://b/v1")),
    ],
)
def test_rollouts_are_sampled_here_or_by_servers(path, rollouts, servers):
    recipe = load_recipe(path, [f"compute.rollouts='{rollouts}'"])
    assert recipe.compute.servers == servers


@pytest.mark.promise(
    "Bad input",
    "Rollouts on vLLM of a layout without adapters, or without a server's URL: the key, and what "
    "it needs",
)
@pytest.mark.parametrize(
    ("rollouts", "says"),
    [
        (
            "vlm",
            "compute.rollouts is local or vllm:URL,URL with the URLs of vLLM servers, or vllm on"
            " Ray, got 'vlm'",
        ),
        ("vllm:", "compute.rollouts: '' is not a server URL; use one such as"),
        ("vllm:http://a:8000,b", "compute.rollouts: 'b' is not a server URL; use one such as"),
    ],
)
def test_other_rollouts_are_refused(path, rollouts, says):
    assert says in complaint(path, f"compute.rollouts='{rollouts}'")


@pytest.mark.promise(
    "Training",
    "With `compute.staleness = 1` the next step is sampled during an update, by weights that are "
    "exactly one update older, is corrected by the ratio that the journal shows, and a resumed "
    "run ends with the same weights; a server that dies meanwhile costs nothing that was learnt",
)
def test_only_what_samples_beside_the_learner_can_sample_ahead(path):
    ahead = "compute.staleness=1"
    assert "needs something that samples while this process learns" in complaint(path, ahead)
    server = ("models.layout='adapters'", "compute.rollouts='vllm:http://a:8000'")
    assert load_recipe(path, [ahead, *server]).compute.staleness == 1
    workers = ("compute.engine='ray'", "compute.ray.workers=1")
    assert load_recipe(path, [ahead, *workers]).compute.staleness == 1
    assert "staleness" in complaint(path, "compute.staleness=2", *server)


@pytest.mark.promise(
    "Bad input",
    "Rollouts on vLLM of a layout without adapters, or without a server's URL: the key, and what "
    "it needs",
)
@pytest.mark.parametrize("layout", ["two-models", "one-model"])
def test_rollouts_on_servers_need_adapters(path, layout):
    settings = ("compute.rollouts='vllm:http://a:8000'", f"models.layout='{layout}'")
    assert f"needs models.layout adapters, got {layout}" in complaint(path, *settings)


@pytest.mark.promise(
    "Command line", "`--set` replaces `epochs` by `steps`, and `steps` by `epochs`"
)
def test_an_override_replaces_steps_by_epochs_and_epochs_by_steps(path):
    (joint,) = load_recipe(path, ["stages.joint.epochs=2"]).reinforcements
    assert (joint.steps, joint.epochs) == (None, 2)
    again = ["stages.joint.epochs=2", "stages.joint.steps=7"]
    (joint,) = load_recipe(path, again).reinforcements
    assert (joint.steps, joint.epochs) == (7, None)
