"""The demo's data, and its starting model after a shorter training."""

import asyncio

from waltzrl.demo import PaperDemo, TrainingJob


def teach_base(folder):
    """Write the data and the base of seed 0 into a demo's folder, where the demo reuses them."""
    demo = PaperDemo(folder / "seed-0", seed=0)
    demo.write_data()
    changes = [
        f"data.demonstrations={[str(demo.file('demonstrations'))]}",
        "stages.warm-up.steps=700",
        "stages.warm-up.optimizer.final_share=0.3",  # about where the whole training is by then
        "compute.threads=1",  # another test has the other core
    ]
    recipe = demo.recipe("base.toml", ["train"], changes)
    base = TrainingJob(name="base", recipe=recipe, folder=demo.base.folder)
    asyncio.run(base.run(lambda done, total: None))
