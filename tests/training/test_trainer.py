import asyncio
import json
import shutil
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor

from support import tiny_pair
from waltzrl.errors import DivergenceError, PolicyError, ScoringError
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.records import Verdict
from waltzrl.training.checkpoints import latest_good, read_state, weights_digest
from waltzrl.training.rewards import signed_rewards
from waltzrl.training.roles import Best
from waltzrl.training.rollouts import Collaborators, RankSampler
from waltzrl.training.settings import (
    CheckpointSettings,
    ImitationStage,
    OptimizerSettings,
    ReinforcementStage,
)
from waltzrl.training.stages import Reinforcement
from waltzrl.training.trainer import Trainer
from waltzrl.training.validation import Validation, best_validation

KEEPING = CheckpointSettings(checkpoint_every=2, keep_last=2, validate_every=3, kl_limit=50.0)


def sampler(team, judge=None):
    return RankSampler(collaborators=Collaborators(team=team, judge=judge or LabelRefusalJudge()))


def stages(team, prompts=None, state=None, judge=None):
    counts = {} if state is None else state
    return [
        Reinforcement(
            settings=ReinforcementStage(
                kind="reinforcement",
                name=name,
                learns=learns,
                steps=steps,
                prompts_per_step=4,
                optimizer=OptimizerSettings(learning_rate=1e-2, warmup_steps=1, final_share=0.5),
            ),
            team=team,
            prompts=prompts or tiny_pair.prompts(),
            sampler=sampler(team, judge),
            reward=signed_rewards,
            class_counts=counts,
            least_scored_share=0.5,
        )
        for name, steps, learns in (
            ("feedback", 3, ("feedback",)),
            ("joint", 4, ("conversation", "feedback")),
        )
    ]


UNUSED = ImitationStage(
    kind="imitation",
    name="stand-in",
    steps=0,
    batch_size=1,
    optimizer=OptimizerSettings(learning_rate=1.0),
)


class KilledError(Exception):
    """Stands for the end of the process after a step."""


def trained(
    folder,
    layout=tiny_pair.two_models,
    kill_after=None,
    *,
    checkpointing=KEEPING,
    prompts=None,
    judge=None,
    validating=False,
):
    team, seen, state = layout(), [], {}

    def report(progress):
        seen.append((progress.stage, progress.step, progress.total))
        if progress.step == kill_after:
            raise KilledError

    folder.mkdir(exist_ok=True)
    parts = stages(team, prompts, state, judge)
    validation = Validation(
        prompts=tiny_pair.prompts(),
        sampler=sampler(team, judge),
        max_rounds=1,
        least_scored_share=0.5,
    )
    trainer = Trainer(
        team.weights,
        parts,
        folder,
        checkpointing,
        state=state,
        validation=validation if validating else None,
    )
    with suppress(KilledError):
        asyncio.run(trainer.train(report))
    digests = {name: weights_digest(own.causal_lm.model) for name, own in team.weights.items()}
    return digests, seen


def journal(folder):
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if not key.startswith("time/")}
        for line in lines
    ]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Return what trains a layout once: the folder of the run, its weights, and its steps."""

    @cache
    def run(layout):
        folder = tmp_path_factory.mktemp("whole")
        return folder, *trained(folder, layout, validating=True)

    return run


@pytest.mark.promise(
    "Evaluation",
    "Over unbalanced batches no constant label earns more than chance by the reward `signed`; its "
    "counts are in the checkpoints",
)
@pytest.mark.parametrize(
    ("layout", "kill_after"),
    [
        (tiny_pair.two_models, 0),
        (tiny_pair.two_models, 2),
        (tiny_pair.two_models, 5),
        (tiny_pair.adapters, 4),
        (tiny_pair.one_model, 5),
    ],
)
def test_a_run_that_is_cut_off_ends_with_the_weights_of_one_that_is_not(
    tmp_path, undisturbed, layout, kill_after
):
    folder, whole, seen = undisturbed(layout)
    assert seen == [("feedback", step, 7) for step in range(3)] + [
        ("joint", step, 7) for step in range(3, 7)
    ]
    trained(tmp_path / "cut", layout, kill_after, validating=True)
    again, _ = trained(tmp_path / "cut", layout, validating=True)
    assert again == whole
    assert journal(tmp_path / "cut") == journal(folder)
    ends = [run / "checkpoints" / "step-000007" for run in (tmp_path / "cut", folder)]
    validated = [line["step"] for line in journal(tmp_path / "cut") if "validation/f1" in line]
    assert validated == [0, 3, 6, 7]  # the last line is that of the final weights alone
    counts, expected = map(read_state, ends)
    assert counts == expected  # of classes, over all steps
    assert sum(counts.values()) > 20


class DyingJudge:
    """A judge that answers until the journal of a run has so many steps."""

    name = "dying"

    def __init__(self, folder, steps):
        self.journal, self.steps = folder / "metrics.jsonl", steps

    async def judge(self, prompt, reply):
        if len(self.journal.read_bytes().splitlines()) >= self.steps:
            raise PolicyError("the judge is down")
        return await LabelRefusalJudge().judge(prompt, reply)


@pytest.mark.promise(
    "Evaluation",
    "Validation changes no step: the same weights are measured alike, and a killed run goes on "
    "bit by bit",
)
def test_a_judge_that_dies_before_a_validation_costs_no_step(tmp_path, undisturbed):
    folder, whole, _ = undisturbed(tiny_pair.two_models)
    cut = tmp_path / "cut"
    with pytest.raises(ScoringError, match=r"^step 6: 0 of 2 "):
        trained(cut, validating=True, judge=DyingJudge(cut, 6))
    again, seen = trained(cut, validating=True)
    assert [step for _, step, _ in seen] == [6]
    assert again == whole
    assert journal(cut) == journal(folder)


@dataclass
class Counting:
    """A stage in which the weights become the number of steps taken."""

    weights: Tensor
    steps: int
    settings: ImitationStage = UNUSED
    steps_per_epoch: int = 1000
    learns: tuple[str, ...] = ()

    async def step(self, number, learners, ahead=False):
        self.weights.data.fill_(number + 1)
        return {}


@pytest.mark.promise(
    "Evaluation",
    "Rates on a validation set are in the journal; the best checkpoint by F1 is kept and "
    "exported, and the export names it",
)
def test_the_best_checkpoint_by_f1_is_kept_and_restored(tmp_path):
    scores = {0: 0.2, 2: 0.9, 4: 0.5, 6: 0.9, 7: 0.1}
    team = tiny_pair.two_models()
    weights = next(team.conversation.policy.model.parameters())
    start = weights.clone()

    def trainer(kept_scores):
        asked = iter(kept_scores.items())

        class FromScores:
            async def measure(self):
                step, score = next(asked)
                assert torch.equal(weights, torch.full_like(weights, step) if step else start)
                return {"validation/f1": score}

        settings = CheckpointSettings(checkpoint_every=100, keep_last=1, validate_every=2)
        stage = Counting(weights, steps=7)
        return Trainer(team.weights, [stage], tmp_path, settings, validation=FromScores())

    run = trainer(scores)
    asyncio.run(run.train(lambda _progress: None))
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert names == ["step-000006", "step-000007"]  # the latest of two
    assert run.restore_best() == Best(6, 0.9)
    assert torch.equal(weights, torch.full_like(weights, 6))
    again = trainer({7: 0.1})  # a finished run measures its end once more, and no line is added
    asyncio.run(again.train(lambda _progress: None))
    assert [line["step"] for line in journal(tmp_path)] == list(range(8))
    assert again.restore_best() == Best(6, 0.9)


def test_a_best_checkpoint_that_is_gone_is_named_and_the_newest_is_used(tmp_path, caplog):
    trained(tmp_path, validating=True)
    team = tiny_pair.two_models()
    trainer = Trainer(team.weights, stages(team), tmp_path, KEEPING)
    best = best_validation(tmp_path)
    shutil.rmtree(tmp_path / "checkpoints" / f"step-{best.step:06d}")
    assert trainer.restore_best() is None
    assert f"step {best.step} has the highest F1, but no checkpoint" in caplog.text


@pytest.mark.promise(
    "Bad input",
    "A damaged checkpoint: the file; the checkpoint before it is used, the newest in the place of "
    "the best",
)
def test_a_best_checkpoint_that_is_damaged_is_refused_and_the_newest_is_used(tmp_path, caplog):
    trained(tmp_path, validating=True)
    team = tiny_pair.two_models()
    trainer = Trainer(team.weights, stages(team), tmp_path, KEEPING)
    before = {name: weights_digest(own.causal_lm.model) for name, own in team.weights.items()}
    name = f"step-{best_validation(tmp_path).step:06d}"
    weights = tmp_path / "checkpoints" / name / "feedback" / "model.safetensors"
    altered = bytearray(weights.read_bytes())
    altered[-1] ^= 1
    weights.write_bytes(altered)
    assert trainer.restore_best() is None
    assert f"has the highest F1, but {name} is refused: {weights} was altered" in caplog.text
    after = {name: weights_digest(own.causal_lm.model) for name, own in team.weights.items()}
    assert after == before


@pytest.mark.promise(
    "Evaluation",
    "A run whose judge is down or does not decide stops with one line and a checkpoint, learns "
    "nothing from it, and resumes bit by bit",
)
@pytest.mark.parametrize("layout", [tiny_pair.two_models, tiny_pair.adapters])
def test_a_run_whose_judge_dies_stops_after_a_checkpoint_and_resumes_bit_by_bit(tmp_path, layout):
    seldom = CheckpointSettings(checkpoint_every=100, kl_limit=50.0)
    many = tiny_pair.prompts() * 20
    whole, _ = trained(tmp_path / "whole", layout, checkpointing=seldom, prompts=many)
    cut = tmp_path / "cut"
    for _ in range(2):  # still down in the second try, which loses nothing
        with pytest.raises(ScoringError, match=r"^step 5: 0 of 4 .* need 50% \(.* is down\)"):
            trained(cut, layout, checkpointing=seldom, prompts=many, judge=DyingJudge(cut, 5))
        assert latest_good(cut / "checkpoints").path.name == "step-000005"
    again, seen = trained(cut, layout, checkpointing=seldom, prompts=many)
    assert [step for _, step, _ in seen] == [5, 6]
    assert again == whole
    assert journal(cut) == journal(tmp_path / "whole")


@pytest.mark.promise(
    "Evaluation",
    "A run whose judge is down or does not decide stops with one line and a checkpoint, learns "
    "nothing from it, and resumes bit by bit",
)
def test_a_run_that_is_never_scored_does_not_end_well(tmp_path):
    class Undecided:
        name = "undecided"

        async def judge(self, prompt, reply):
            return Verdict(judge=self.name)

    with pytest.raises(ScoringError, match=r"step 0: 0 of 4 .*; none failed\)"):
        trained(tmp_path, judge=Undecided())
    assert not (tmp_path / "checkpoints").exists()


def test_a_finished_run_is_only_loaded(tmp_path):
    whole, _ = trained(tmp_path)
    again, seen = trained(tmp_path)
    assert seen == []
    assert again == whole


def test_the_newest_checkpoints_and_the_ends_of_epochs_and_stages_are_kept(tmp_path):
    trained(tmp_path, prompts=tiny_pair.prompts() * 4)  # 8 prompts, 4 a step: an epoch is 2 steps
    names = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    first_stage, second_stage, newest = [2, 3], [3 + 2, 3 + 4], [6, 7]
    kept = sorted({*first_stage, *second_stage, *newest})
    assert names == [f"step-{step:06d}" for step in kept]


@pytest.mark.promise(
    "Bad input",
    "A damaged checkpoint: the file; the checkpoint before it is used, the newest in the place of "
    "the best",
)
def test_a_damaged_checkpoint_is_refused_by_name_and_the_one_before_is_used(tmp_path, caplog):
    whole, _ = trained(tmp_path)
    weights = tmp_path / "checkpoints" / "step-000007" / "feedback" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    again, seen = trained(tmp_path)
    assert "step-000007 is refused" in caplog.text
    assert "model.safetensors" in caplog.text
    assert [step for _, step, _ in seen] == [6]
    assert again == whole


def test_while_a_damaged_checkpoint_is_made_up_for_the_newest_good_one_stays(tmp_path):
    one = CheckpointSettings(checkpoint_every=1, keep_last=1, kl_limit=50.0)
    many = tiny_pair.prompts() * 20  # no epoch ends within these stages
    trained(tmp_path, checkpointing=one, prompts=many)
    checkpoints = tmp_path / "checkpoints"
    (checkpoints / "step-000007" / "MANIFEST.json").unlink()
    trained(tmp_path, checkpointing=one, prompts=many, kill_after=5)  # from 3, the end of a stage
    assert latest_good(checkpoints).path == checkpoints / "step-000005"


def test_restoring_without_a_checkpoint_starts_anew(tmp_path):
    team = tiny_pair.two_models()
    assert Trainer(team.weights, stages(team), tmp_path, KEEPING).restore() == 0


@pytest.mark.promise(
    "Bad input",
    "Loss or KL out of bounds: the step, the value and its limit; the last good checkpoint stays",
)
def test_divergence_stops_the_run_and_keeps_a_checkpoint_before_it(tmp_path):
    strict = CheckpointSettings(checkpoint_every=2, keep_last=2, kl_limit=1e-9)
    with pytest.raises(DivergenceError, match=r"kl/\w+_nats is .* above the limit 1e-09 3 times"):
        trained(tmp_path, checkpointing=strict, prompts=tiny_pair.prompts() * 4)
    kept = sorted(path.name for path in (tmp_path / "checkpoints").iterdir())
    assert kept
    seen = [line["step"] for line in journal(tmp_path)]
    assert len(seen) < 7


@dataclass
class Scripted:
    """A stage in which nobody learns and the KL is as written."""

    kl: list[float]
    settings: ImitationStage = UNUSED
    steps_per_epoch: int = 100
    learns: tuple[str, ...] = ()

    @property
    def steps(self):
        return len(self.kl)

    async def step(self, number, learners, ahead=False):
        return {"kl/feedback_nats": self.kl[number]}


def played(folder, kl):
    stage = Scripted(kl)
    trainer = Trainer(
        tiny_pair.two_models().weights, [stage], folder, CheckpointSettings(kl_limit=1.0)
    )
    asyncio.run(trainer.train(lambda _progress: None))


def test_a_kl_above_the_limit_now_and_then_is_no_divergence(tmp_path):
    played(tmp_path, [2.0, 2.0, 0.1, 2.0, 2.0])


def test_a_kl_that_stays_above_the_limit_is_divergence(tmp_path):
    with pytest.raises(DivergenceError, match=r"step 3: .* above the limit 1\.0"):
        played(tmp_path, [0.1, 2.0, 2.0, 2.0, 2.0])


@dataclass
class Overflowing:
    """A stage of one step, in which nobody learns and one number runs away."""

    measured: dict[str, float]
    settings: ImitationStage = UNUSED
    steps: int = 1
    steps_per_epoch: int = 1
    learns: tuple[str, ...] = ()

    async def step(self, number, learners, ahead=False):
        return self.measured


@pytest.mark.promise(
    "Bad input",
    "Loss or KL out of bounds: the step, the value and its limit; the last good checkpoint stays",
)
@pytest.mark.parametrize("name", ["kl/feedback_nats", "reward/feedback_mean"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_value_that_is_not_finite_is_called_so_and_no_limit_is_named(tmp_path, name, value):
    stage = Overflowing({name: float(value)})
    trainer = Trainer(tiny_pair.two_models().weights, [stage], tmp_path, KEEPING)
    with pytest.raises(DivergenceError) as caught:
        asyncio.run(trainer.train(lambda progress: None))
    said = str(caught.value)
    assert said.startswith(f"step 0: {name} is {value}, not a finite number; the last good")
    assert not (tmp_path / "checkpoints").exists()


def test_a_stage_that_waits_for_nothing_can_be_stopped_after_any_step(tmp_path):
    seen = []

    async def stop_after_two():
        stage = Overflowing({}, steps=50, steps_per_epoch=50)
        trainer = Trainer(tiny_pair.two_models().weights, [stage], tmp_path, KEEPING)

        def report(progress):
            seen.append(progress.step)
            if progress.step == 1:
                training.cancel()

        training = asyncio.create_task(trainer.train(report))
        with suppress(asyncio.CancelledError):
            await training

    asyncio.run(stop_after_two())
    assert seen == [0, 1]
