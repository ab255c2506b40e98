"""The demo of conversations: what its arms train on, and the whole story in miniature."""

import asyncio
from pathlib import Path

import pytest

from waltzrl.evaluation.rows import read_rows
from waltzrl.evaluation.study import write_seed
from waltzrl.foundation.jsonl import read_prompts
from waltzrl_demo.paper import DemoSize
from waltzrl_demo.seeds import list_tokens, tabulate
from waltzrl_demo.turns import ARMS, COMPARED, SETS, THREE_ROUNDS, TurnsDemo, TurnsSize
from waltzrl_demo.world.lexicon import CONVERSATIONS

FEW = (
    "agents.max_new_tokens=8",
    *(f"stages.{name}.steps=1" for name in ("feedback", "joint")),
    *(f"stages.{name}.prompts_per_step=4" for name in ("feedback", "joint")),
)
TINY = TurnsSize(
    world=DemoSize(
        demonstrations=60,
        prompts={"train": 24, "validation": 4, "test": 16},
        general=4,
        levels=("kind", *CONVERSATIONS),
        base_changes=(
            "stages.warm-up.steps=2",
            "stages.warm-up.batch_size=4",
            "models.base.hidden=16",
        ),
    ),
    arms=dict.fromkeys(ARMS, FEW) | {THREE_ROUNDS: (*FEW, "stages.joint.round_cost=0.1")},
)


def test_one_arm_trains_on_single_turns_and_the_others_on_conversations_too(tmp_path):
    demo = TurnsDemo(tmp_path, 0, size=TINY)
    demo.write_data()
    kinds = {}
    for arm in ARMS:
        recipe = demo.training(arm).recipe
        (sensitive,) = {name for name in recipe.data.prompts if "general" not in name}
        kinds[arm] = {prompt.category for prompt in read_prompts(Path(sensitive))}
        assert recipe.models.base == demo.training(ARMS[0]).recipe.models.base
        charged = [stage.round_cost > 0 for stage in recipe.reinforcements]
        assert any(charged) is (recipe.agents.max_rounds == 3) is (arm == THREE_ROUNDS)
    assert kinds == {ARMS[0]: {"kind"}} | {arm: {"kind", *CONVERSATIONS} for arm in ARMS[1:]}


@pytest.mark.slow
def test_pairs_are_measured_on_every_kind_of_conversation(tmp_path):
    demo = TurnsDemo(tmp_path / "work" / "seed-0", 0, size=TINY)
    demo.write_data()
    for jobs in demo.rounds:
        for job in jobs:
            asyncio.run(job.run(lambda done, total: None))
    write_seed(tmp_path, demo.results())
    for arms in COMPARED:
        rows = tabulate(tmp_path, [0], arms, SETS)
        assert [(row.prompts, row.metric) for row in rows] == [
            *((name, metric) for name in SETS for metric in ("asr", "orr", "f1")),
            ("general", "capability"),
        ]
        assert all(tuple(row.arms) == arms and row.change is None for row in rows)
    tokens = list_tokens(tmp_path, [0])
    assert tuple(tokens) == ARMS
    assert min(tokens.values()) > 0
    rounds = {
        arm: max(
            len(row.judged.collaboration.rounds) for row in read_rows(demo.measurement(arm).folder)
        )
        for arm in ARMS
    }
    assert all(rounds[arm] == 1 for arm in ARMS[:2])
    assert 1 <= rounds[THREE_ROUNDS] <= 3
