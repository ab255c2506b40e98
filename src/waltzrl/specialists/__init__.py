"""Specialists: agents for requests of one kind, as many adapters on one base.

The data sets need no PyTorch; every other name is imported on first use and needs the extra
`train`.

    from waltzrl.specialists import finetune, prepare_dataset
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.first_use import imported_on_first_use

if TYPE_CHECKING:
    from waltzrl.specialists.agents import integrate_with_agent, open_specialists
    from waltzrl.specialists.datasets import (
        Specialist,
        SpecialistDataset,
        prepare_dataset,
        specialists,
        write_nanochat,
    )
    from waltzrl.specialists.evaluation import evaluate
    from waltzrl.specialists.finetuning import FinetuningSettings, estimate_cost, finetune

__all__ = [
    "FinetuningSettings",
    "Specialist",
    "SpecialistDataset",
    "estimate_cost",
    "evaluate",
    "finetune",
    "integrate_with_agent",
    "open_specialists",
    "prepare_dataset",
    "specialists",
    "write_nanochat",
]

# To type checkers a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:
    __getattr__ = imported_on_first_use(
        __name__,
        {
            ".agents": ("integrate_with_agent", "open_specialists"),
            ".datasets": (
                "Specialist",
                "SpecialistDataset",
                "prepare_dataset",
                "specialists",
                "write_nanochat",
            ),
            ".evaluation": ("evaluate",),
            ".finetuning": ("FinetuningSettings", "estimate_cost", "finetune"),
        },
        needs=("PyTorch", "train"),
    )
