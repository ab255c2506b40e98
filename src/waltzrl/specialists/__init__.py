"""Specialists: agents for requests of one kind, as many adapters on one base.

The data sets need no PyTorch; every other name is imported on first use and needs the extra
`train`.

    from waltzrl.specialists import finetune, prepare_dataset
"""

from importlib import import_module
from typing import TYPE_CHECKING

from waltzrl.errors import MissingExtraError
from waltzrl.specialists.datasets import (
    Specialist,
    SpecialistDataset,
    prepare_dataset,
    specialists,
    write_nanochat,
)

if TYPE_CHECKING:
    from waltzrl.specialists.agents import integrate_with_agent, open_specialists
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

_MODULES = {
    "FinetuningSettings": "finetuning",
    "estimate_cost": "finetuning",
    "evaluate": "evaluation",
    "finetune": "finetuning",
    "integrate_with_agent": "agents",
    "open_specialists": "agents",
}


def __getattr__(name: str) -> object:
    """Import a name that needs PyTorch when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except ModuleNotFoundError as missing:
        raise MissingExtraError(f"{__name__}.{name}", "PyTorch", "train") from missing
    return getattr(module, name)
