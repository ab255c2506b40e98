"""Train the agents: collaborate on prompts, judge, reward, learn.

Rewards and settings need no PyTorch; every other name is imported on first use and needs the extra
`train`.

    from waltzrl.training import Reinforcement, Trainer
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.first_use import imported_on_first_use

if TYPE_CHECKING:
    from waltzrl.training.learner import Learner, Scorer
    from waltzrl.training.reinforce import Algorithm
    from waltzrl.training.roles import Role, Team, make_team
    from waltzrl.training.samples import Sample
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

# To type checkers a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:
    __getattr__ = imported_on_first_use(
        __name__,
        {
            ".learner": ("Learner", "Scorer"),
            ".reinforce": ("Algorithm",),
            ".roles": ("Role", "Team", "make_team"),
            ".samples": ("Sample",),
            ".settings": (
                "AgentSettings",
                "CheckpointSettings",
                "ImitationStage",
                "ModelSettings",
                "ModelSize",
                "OptimizerSettings",
                "ReinforcementStage",
                "ReinforceSettings",
                "TeacherStage",
            ),
            ".stages": ("Imitation", "Reinforcement", "Stage"),
            ".trainer": ("Progress", "Trainer"),
        },
        needs=("PyTorch", "train"),
    )
