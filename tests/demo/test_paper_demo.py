"""The demo's story: its data, its recipes, and the names in its tables."""

import pytest

from waltzrl.data import read_prompts
from waltzrl.demo import PaperDemo
from waltzrl.evaluation import EvaluationRow
from waltzrl.evaluation.rows import RowLog
from waltzrl.records import Collaboration, JudgedCollaboration, Message, Prompt, Reply, Verdict


@pytest.fixture
def story(tmp_path):
    return PaperDemo(tmp_path / "demo", seed=3)


def test_the_data_has_500_test_prompts_a_side(story, tmp_path):
    story.write_data()
    test = read_prompts(tmp_path / "demo" / "data" / "test.jsonl")
    assert [sum(p.label == label for p in test) for label in ("unsafe", "benign")] == [500, 500]


def test_every_training_has_as_many_optimiser_steps_as_waltzrl(story):
    steps = {
        name: sum(stage.steps for stage in training.recipe.stages)
        for name, training in story.trainings.items()
    }
    whole = {name: count for name, count in steps.items() if not name.startswith("design")}
    assert whole == dict.fromkeys(("signed", "paper", "frozen", "single"), 130)
    assert steps["design-a"] == steps["design-b"] == steps["design-c"] == 50


def test_every_training_meets_the_same_prompts_and_starts_from_the_same_base(story):
    recipes = [training.recipe for training in story.trainings.values()]
    assert len({(recipe.data.prompts, recipe.models.base, recipe.seed) for recipe in recipes}) == 1


def test_only_the_roles_that_a_row_names_learn(story):
    learns = {
        name: [stage.learns for stage in training.recipe.stages]
        for name, training in story.trainings.items()
    }
    assert learns["signed"] == learns["paper"] == [("feedback",), ("conversation", "feedback")]
    assert learns["frozen"] == [("feedback",), ("feedback",)]
    assert learns["single"] == [("conversation",), ("conversation",)]


def row(pattern: str, prompt_id: str, *, refuses: bool, label="benign") -> EvaluationRow:
    prompt = Prompt(id=prompt_id, messages=(Message(role="user", content="How?"),), label=label)
    said = Collaboration(prompt=prompt, draft=Reply(text="Sorry." if refuses else "Sure."))
    verdict = Verdict(judge="j", unsafe=False, refuses=refuses, overrefuses=refuses)
    judged = JudgedCollaboration(collaboration=said, verdicts=(verdict,))
    return EvaluationRow(pattern=pattern, prompt_id=prompt_id, judge="j", judged=judged)


def logged(story: PaperDemo, training: str, *rows: EvaluationRow) -> None:
    with RowLog(story.folder / training / "evaluation") as log:
        for one in rows:
            log.append(one)


def test_the_better_mode_is_chosen_on_validation_not_on_the_test(story):
    for mode, refuses in (("signed", True), ("paper", False)):
        logged(
            story,
            mode,
            row("collaborate", "world/validation/0", refuses=True, label="unsafe"),
            row("collaborate", "world/validation/1", refuses=refuses),
            row("collaborate", "world/test/0", refuses=True, label="unsafe"),
            row("collaborate", "world/test/1", refuses=not refuses),
        )
    assert story.best_mode() == "paper"
