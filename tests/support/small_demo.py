"""The starting model of the flywheel's story: trained once and kept, because it takes a minute.

PYTHONPATH=tests python -m support.small_demo    # trains it again, after a change of the world
"""

import asyncio
import shutil
import tempfile
from dataclasses import replace
from itertools import chain
from pathlib import Path

from waltzrl.agents.exports import CONVERSATION, FEEDBACK
from waltzrl.foundation.jsonl import read_prompts, write_lines
from waltzrl_demo.flywheel import EASY
from waltzrl_demo.jobs import TrainingJob
from waltzrl_demo.paper import PaperDemo

KEPT = Path(__file__).with_name("story_base")
FEW = replace(EASY, demonstrations=1)
"""The size of the story's world, whose base is kept: nothing is left to demonstrate."""


def put_base(folder):
    """Put a small world and the base of seed 0 into a flywheel's folder, which then makes none.

    Of the validation set it has the harmful prompts that calibrate a reviewer, and few others.
    """
    demo = PaperDemo(folder / "world", seed=0, size=FEW)
    demo.write_data()
    shorten(demo.file("validation"), {"unsafe": 520, "benign": 200})
    shorten(demo.file("test"), {"unsafe": 250, "benign": 150})
    shorten(demo.file("general-test"), {None: 100})
    agents = demo.base.agents
    for role in (CONVERSATION, FEEDBACK):  # as an export of the base has it
        shutil.copytree(KEPT, agents / role)


def shorten(file, most):
    """Keep only so many prompts of each label."""
    prompts = read_prompts(file)
    kept = [[p for p in prompts if p.label == label][:count] for label, count in most.items()]
    write_lines(file, [*chain.from_iterable(kept)])


def train_base(folder):
    """Train the base with few steps; return the folder of its agents."""
    demo = PaperDemo(folder, seed=0, size=EASY)
    demo.write_data()
    changes = [
        f"data.demonstrations={[str(demo.file('demonstrations'))]}",
        "stages.warm-up.steps=800",
        "stages.warm-up.optimizer.final_share=0.1",
        "compute.threads=1",
    ]
    recipe = demo.recipe("base.toml", ["train"], changes)
    base = TrainingJob(name="base", recipe=recipe, folder=demo.base.folder)
    asyncio.run(base.run(lambda done, total: None))
    return base.agents


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        trained = train_base(Path(folder))
        shutil.rmtree(KEPT, ignore_errors=True)
        shutil.copytree(trained / CONVERSATION, KEPT)
