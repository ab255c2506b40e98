"""Train the agents: collaborate on prompts, judge, reward, learn.

Rewards and settings need no PyTorch; every other name is imported on first use and needs the extra
`train`.

    from waltzrl.training import Reinforcement, Trainer
"""

from importlib import import_module
from typing import TYPE_CHECKING

from waltzrl.errors import MissingExtraError
from waltzrl.training.settings import (
    AgentSettings,
    CheckpointSettings,
    ImitationStage,
    ModelSettings,
    ModelSize,
    OptimizerSettings,
    ReinforcementStage,
    ReinforceSettings,
    TeacherStage,
)

if TYPE_CHECKING:
    from waltzrl.training.learner import Learner, Scorer
    from waltzrl.training.reinforce import Algorithm
    from waltzrl.training.roles import Role, Team, make_team
    from waltzrl.training.samples import Sample
    from waltzrl.training.stages import Imitation, Reinforcement, Stage
    from waltzrl.training.trainer import Progress, Trainer

__all__ = [
    "AgentSettings",
    "Algorithm",
    "CheckpointSettings",
    "Imitation",
    "ImitationStage",
    "Learner",
    "ModelSettings",
    "ModelSize",
    "OptimizerSettings",
    "Progress",
    "ReinforceSettings",
    "Reinforcement",
    "ReinforcementStage",
    "Role",
    "Sample",
    "Scorer",
    "Stage",
    "TeacherStage",
    "Team",
    "Trainer",
    "make_team",
]

_MODULES = {
    "Algorithm": "reinforce",
    "Imitation": "stages",
    "Learner": "learner",
    "Progress": "trainer",
    "Reinforcement": "stages",
    "Role": "roles",
    "Sample": "samples",
    "Scorer": "learner",
    "Stage": "stages",
    "Team": "roles",
    "Trainer": "trainer",
    "make_team": "roles",
}


def __getattr__(name: str) -> object:
    """Import a name that needs PyTorch when it is first used (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = import_module(f"{__name__}.{_MODULES[name]}")
    except (ModuleNotFoundError, MissingExtraError) as missing:
        raise MissingExtraError(f"{__name__}.{name}", "PyTorch", "train") from missing
    return getattr(module, name)
