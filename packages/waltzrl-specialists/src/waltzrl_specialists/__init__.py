"""Specialists: agents for requests of one kind, as many adapters on one base.

Names are imported when they are first used. The data sets need no PyTorch; every other name needs
the extra `train`.

    from waltzrl_specialists import finetune, prepare_dataset
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl_specialists.agents import integrate_with_agent as integrate_with_agent
    from waltzrl_specialists.datasets import prepare_dataset as prepare_dataset
    from waltzrl_specialists.finetuning import FinetuningSettings as FinetuningSettings
    from waltzrl_specialists.finetuning import estimate_cost as estimate_cost
    from waltzrl_specialists.finetuning import finetune as finetune
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "datasets": ("prepare_dataset",),
            "agents": ("integrate_with_agent",),
            "finetuning": ("FinetuningSettings", "estimate_cost", "finetune"),
        },
        needs=("PyTorch", "train"),
    )
