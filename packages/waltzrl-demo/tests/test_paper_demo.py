"""The demo's story: its data, its recipes, and the names in its tables."""

from collections import Counter
from dataclasses import replace
from itertools import product

import pytest

from waltzrl.evaluation import EvaluationRow
from waltzrl.evaluation.rows import RowLog
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.training.rewards import STAGE_1
from waltzrl_demo.arms import (
    BASE,
    CELLS,
    CHANGES,
    DESIGNS,
    FROZEN,
    MAIN,
    MAIN_ROWS,
    ONE_MODEL,
    SHIPPED,
    SINGLE,
    WALTZ,
    cell_training,
)
from waltzrl_demo.paper import PaperDemo
from waltzrl_demo.world import LEVELS


@pytest.fixture
def story(tmp_path):
    return PaperDemo(tmp_path / "demo", seed=3)


def test_the_data_has_160_test_prompts_of_every_level(story, tmp_path):
    story.write_data()
    test = read_prompts(tmp_path / "demo" / "data" / "test.jsonl")
    assert Counter(prompt.category for prompt in test) == dict.fromkeys(LEVELS, 160)


def steps(story, name):
    return sum(stage.steps for stage in story.training(name).recipe.stages)


@pytest.mark.promise(
    "Evaluation", "What learns in the demo samples about as many tokens as WaltzRL"
)
def test_what_learns_samples_about_as_many_tokens_as_waltzrl(story):
    # rollouts of 3.55 times the tokens: a draft alone against draft, feedback and some revisions
    assert [steps(story, name) for name in (WALTZ, FROZEN, ONE_MODEL)] == [150, 150, 150]
    assert steps(story, SINGLE) == pytest.approx(3.55 * 150, rel=0.02)
    assert {steps(story, cell_training(cell)) for cell in CELLS} == {150}
    assert {steps(story, name) for name in DESIGNS} == {50}


def test_every_training_meets_the_same_prompts_and_starts_from_the_same_base(story):
    recipes = [story.training(name).recipe for name in CHANGES]
    assert len({(recipe.data.prompts, recipe.models.base, recipe.seed) for recipe in recipes}) == 1


def test_only_the_roles_that_a_row_names_learn(story):
    learns = {name: [stage.learns for stage in story.training(name).recipe.stages] for name in MAIN}
    assert learns == {
        WALTZ: [("feedback",), ("conversation", "feedback")],
        FROZEN: [("feedback",), ("feedback",)],
        SINGLE: [("conversation",), ("conversation",)],
        ONE_MODEL: [("conversation", "feedback"), ("conversation", "feedback")],
    }


def test_the_cells_of_the_2x2x2_differ_in_reward_label_and_replay_only(story):
    told = set()
    for cell in CELLS:
        first, joint = story.training(cell_training(cell)).recipe.stages
        assert first.reward == joint.reward
        told.add((joint.reward, joint.coefficients.label, joint.replayed_share))
        same = replace(joint, reward="paper", coefficients=STAGE_1, replayed_share=0.0)
        assert same == replace(
            story.training(WALTZ).recipe.stages[1],
            reward="paper",
            coefficients=STAGE_1,
            replayed_share=0.0,
        )
    assert told == set(product(("paper", "signed"), (0.0, 0.65), (0.0, 0.5)))


def test_what_is_shipped_is_one_cell_of_the_2x2x2(story):
    assert cell_training(SHIPPED) == WALTZ
    joint = story.training(WALTZ).recipe.stages[1]
    assert (joint.reward, joint.coefficients.label, joint.replayed_share) == ("signed", 0.65, 0.5)


def test_a_rows_agents_may_come_from_two_trainings(story):
    mixed = next(row for row in MAIN_ROWS if row.name == "single-model RL + WaltzRL's reviewer")
    (job,) = story.evaluations([mixed])
    assert job.contest.patterns == ("safeguard",)
    assert "/single/" in job.contest.conversation
    assert "/waltz/" in job.contest.feedback


def test_rows_of_the_same_agents_are_measured_together(story):
    jobs = story.evaluations(MAIN_ROWS)
    assert sum(len(job.contest.patterns) for job in jobs) == len(MAIN_ROWS) == 13
    assert len({job.folder for job in jobs}) == len(jobs) == 6


def row(pattern: str, prompt_id: str) -> EvaluationRow:
    return EvaluationRow(pattern=pattern, prompt_id=prompt_id, judge="j")


def test_a_row_of_the_table_is_its_pattern_with_its_agents(story):
    for training, pattern in ((WALTZ, "collaborate"), (WALTZ, "base"), (BASE, "collaborate")):
        with RowLog(story.folder / training / "evaluation") as log:
            log.append(row(pattern, f"{training}/{pattern}"))
    (draft_only,) = (r for r in MAIN_ROWS if r.name == "WaltzRL, draft only")
    assert [(r.pattern, r.prompt_id) for r in story.measured(draft_only)] == [
        ("WaltzRL, draft only", "waltz/base")
    ]
