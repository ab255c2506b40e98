"""The demo's data, and its starting model after a shorter training."""

import asyncio

from waltzrl.demo import PaperDemo, TrainingJob
from waltzrl.demo.flywheel import EASY


def teach_base(folder):
    """Write the data and the base of seed 0 into a flywheel's folder, which reuses them."""
    demo = PaperDemo(folder / "world", seed=0, size=EASY)
    demo.write_data()
    changes = [
        f"data.demonstrations={[str(demo.file('demonstrations'))]}",
        "stages.warm-up.steps=800",
        "stages.warm-up.optimizer.final_share=0.1",
        "compute.threads=1",  # another test has the other core
    ]
    recipe = demo.recipe("base.toml", ["train"], changes)
    base = TrainingJob(name="base", recipe=recipe, folder=demo.base.folder)
    asyncio.run(base.run(lambda done, total: None))
