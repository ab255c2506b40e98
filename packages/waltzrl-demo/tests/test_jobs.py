"""The demo's jobs: they train and evaluate with the judge that they are given."""

import asyncio
import json
import pickle
from functools import partial

import pytest

from support.small_runs import save_model, save_prompts, save_recipe
from waltzrl.errors import RecipeError
from waltzrl.evaluation import read_rows
from waltzrl.evaluation.judges.guard import LinearGuard
from waltzrl.evaluation.settings import EvaluationConfig
from waltzrl.records import Verdict
from waltzrl.training.recipe import load_recipe
from waltzrl_demo.jobs import EvaluationJob, TrainingJob

SHORT = ("stages.feedback.steps=1", "stages.joint.steps=0")


class LengthJudge:
    """Calls every reply of more than so many characters unsafe."""

    def __init__(self, longest):
        self.longest, self.name = longest, f"length@{longest}"

    async def judge(self, prompt, reply):
        unsafe = len(reply.text) > self.longest
        return Verdict(judge=self.name, unsafe=unsafe, refuses=not unsafe, overrefuses=False)


def run(job):
    """Run a job as another process gets it."""
    asyncio.run(pickle.loads(pickle.dumps(job)).run(lambda done, total: None))


def training(tmp_path, judge):
    recipe = load_recipe(save_recipe(tmp_path), SHORT)
    return TrainingJob(name="run", recipe=recipe, folder=tmp_path / "run", judge=judge)


def test_a_training_uses_the_judge_of_its_job_and_its_recipe_says_so(tmp_path):
    run(training(tmp_path, partial(LengthJudge, 1000)))
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    metrics = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert recipe["judge"] == "length@1000"
    assert metrics["rate/asr"] == 0.0  # none is a refusal, so the recipe's own judge says 1.0


def test_a_training_is_not_continued_with_another_judge(tmp_path):
    asyncio.run(training(tmp_path, partial(LengthJudge, 0)).run(lambda done, total: None))
    (tmp_path / "run" / "agents" / "manifest.json").unlink()
    (tmp_path / "run" / "agents").rename(tmp_path / "elsewhere")
    with pytest.raises(RecipeError, match="other judge"):
        run(training(tmp_path, partial(LengthJudge, 5)))


def test_a_training_without_a_judge_uses_that_of_its_recipe(tmp_path):
    run(training(tmp_path, None))
    assert json.loads((tmp_path / "run" / "recipe.json").read_text())["judge"] == "refusal"


def test_an_evaluation_uses_the_judge_of_its_job(tmp_path):
    model = str(save_model(tmp_path / "model"))
    contest = EvaluationConfig(
        patterns=("base",), conversation=model, feedback=model, wording="tiny", max_new_tokens=4
    )
    sets = (save_prompts(tmp_path / "prompts.jsonl"),)
    folder = tmp_path / "rows"
    judge = partial(LengthJudge, 0)
    run(EvaluationJob(name="e", contest=contest, sets=sets, folder=folder, judge=judge))
    assert {row.judge for row in read_rows(folder)} == {"length@0"}


def test_guards_in_the_loop_and_the_best_of_3_are_patterns_of_an_evaluation(tmp_path):
    model, guard = str(save_model(tmp_path / "model")), tmp_path / "guard"
    guard.mkdir()
    LinearGuard({}, bias=1.0).save(guard / "unsafe.json")  # flags everything
    LinearGuard({}, bias=-1.0).save(guard / "overrefuse.json")
    contest = EvaluationConfig(
        patterns=("base", "guard", "guard-loop", "best-of-3"),
        conversation=model,
        feedback=model,
        guard=str(guard),
        wording="tiny",
        max_new_tokens=4,
    )
    sets = (save_prompts(tmp_path / "prompts.jsonl"),)
    run(EvaluationJob(name="e", contest=contest, sets=sets, folder=tmp_path / "rows"))
    rows = read_rows(tmp_path / "rows")
    decisions = {(row.pattern, row.judged.collaboration.decision) for row in rows}
    assert decisions == {
        ("base", "draft"),
        ("guard", "refused"),
        ("guard-loop", "revised"),
        ("best-of-3", "draft"),
    }
    tokens = {
        pattern: sum(row.tokens for row in rows if row.pattern == pattern)
        for pattern in ("base", "best-of-3")
    }
    assert tokens["best-of-3"] > 3 * tokens["base"] / 2  # three drafts and three reviews
