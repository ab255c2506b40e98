"""Train the agents: collaborate on prompts, judge, reward, learn.

Names are imported when they are first used. Rewards and settings need no PyTorch; every other name
needs the extra `train`.

    from waltzrl.training import Reinforcement, Trainer
"""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl.training.learner import Learner as Learner
    from waltzrl.training.learner import Scorer as Scorer
    from waltzrl.training.roles import Role as Role
    from waltzrl.training.roles import Team as Team
    from waltzrl.training.roles import make_team as make_team
    from waltzrl.training.samples import Sample as Sample
    from waltzrl.training.settings import AgentSettings as AgentSettings
    from waltzrl.training.settings import CheckpointSettings as CheckpointSettings
    from waltzrl.training.settings import ImitationStage as ImitationStage
    from waltzrl.training.settings import ModelSettings as ModelSettings
    from waltzrl.training.settings import ModelSize as ModelSize
    from waltzrl.training.settings import OptimizerSettings as OptimizerSettings
    from waltzrl.training.settings import ReinforcementStage as ReinforcementStage
    from waltzrl.training.settings import ReinforceSettings as ReinforceSettings
    from waltzrl.training.settings import TeacherStage as TeacherStage
    from waltzrl.training.stages import Imitation as Imitation
    from waltzrl.training.stages import Reinforcement as Reinforcement
    from waltzrl.training.stages import Stage as Stage
    from waltzrl.training.trainer import Progress as Progress
    from waltzrl.training.trainer import Trainer as Trainer
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "settings": (
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
            "learner": (
                "Learner",
                "Scorer",
            ),
            "roles": (
                "Role",
                "Team",
                "make_team",
            ),
            "samples": ("Sample",),
            "stages": (
                "Imitation",
                "Reinforcement",
                "Stage",
            ),
            "trainer": (
                "Progress",
                "Trainer",
            ),
        },
        needs=("PyTorch", "train"),
    )
