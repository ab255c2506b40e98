from pathlib import Path

import pytest

from waltzrl.errors import RecipeError
from waltzrl.training.recipe import load_recipe
from waltzrl.training.rewards import ExplanationCoefficients

TEACHER = Path(__file__).parents[2] / "recipes" / "teacher.toml"
ALONE = """
seed = 0
models = { base = "somewhere", layout = "adapters" }
data.solutions = ["solutions.jsonl"]
agents.max_new_tokens = 8

[[stages]]
kind = "teacher"
name = "teacher"
steps = 3
optimizer.learning_rate = 1e-3

[[stages]]
kind = "imitation"
name = "distillation"
imitates = "explanations"
steps = 3
batch_size = 2
optimizer.learning_rate = 1e-3
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "alone.toml"
    path.write_text(ALONE)
    return path


def complaint(path, *overrides):
    with pytest.raises(RecipeError) as caught:
        load_recipe(path, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{path}: ")


def test_a_teacher_needs_no_prompts_and_has_the_authors_coefficients(path):
    recipe = load_recipe(path)
    assert recipe.teacher.coefficients == ExplanationCoefficients(
        solution_mean=1.0, solution_min=0.01, divergence_mean=3.0, divergence_max=0.03
    )
    assert (recipe.teacher.group_size, recipe.teacher.total_steps(99)) == (8, 3)
    assert recipe.use_rlt_optimization is False


def test_the_recipe_of_the_project_explains_verdicts_or_solutions_of_your_own():
    verdicts = load_recipe(TEACHER)
    assert verdicts.use_rlt_optimization
    assert [stage.name for stage in verdicts.reinforcements] == ["joint"]
    own = ["use_rlt_optimization=false", 'data.solutions=["mine.jsonl"]']
    assert load_recipe(TEACHER, own).data.solutions == ("mine.jsonl",)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.solutions=[]"], "a stage of explanations needs data.solutions, or"
         " data.demonstrations with use_rlt_optimization = true"),
        (["use_rlt_optimization=true"], "use_rlt_optimization: the teacher explains the reviews of"
         " data.demonstrations; remove data.solutions"),
        (["stages.distillation.imitates=traces"], "a stage of kind teacher is followed by one of"
         " imitation with imitates = 'explanations', and nothing else imitates those"),
        (["stages.teacher.group_size=1", "stages.teacher.algorithm.centre_groups=true"],
         "stage 'teacher': centre_groups needs a group_size of 2 or more"),
        (["stages.teacher.coefficients.solution_meen=1"],
         "unknown key 'stages.coefficients.solution_meen'; did you mean"
         " 'stages.coefficients.solution_mean'?"),
        (["models={pair='agents', layout='two-models'}"],
         "a stage of imitation teaches a base, and models.pair has none"),
    ],
)  # fmt: skip
def test_a_teacher_that_cannot_be_is_refused_in_one_line(path, overrides, message):
    assert message in complaint(path, *overrides)


def without(path, kind):
    """Take the stages of a kind out of a recipe."""
    first, *stages = path.read_text().split("[[stages]]")
    path.write_text("[[stages]]".join([first, *(s for s in stages if f'"{kind}"' not in s)]))


def test_explanations_need_a_teacher_before_them(path):
    without(path, "teacher")
    assert complaint(path).startswith("a stage of kind teacher is followed by one of imitation")


def test_a_run_has_one_teacher(path):
    again = path.read_text().split("[[stages]]")[1].replace('"teacher"\nsteps', '"again"\nsteps')
    path.write_text(f"{path.read_text()}[[stages]]{again}")
    assert complaint(path) == "a run has one teacher, got 2 such stages"


def test_solutions_and_the_switch_are_for_a_teacher(path):
    changes = ["data.demonstrations=['d.jsonl']", "stages.distillation.imitates=demonstrations"]
    without(path, "teacher")
    message = (
        "data.solutions and use_rlt_optimization are for a teacher; add a stage of kind teacher"
    )
    assert complaint(path, *changes).startswith(message)
    switched = [*changes, "data.solutions=[]", "use_rlt_optimization=true"]
    assert complaint(path, *switched).startswith(message)
    assert load_recipe(path, [*changes, "data.solutions=[]"]).teacher is None
