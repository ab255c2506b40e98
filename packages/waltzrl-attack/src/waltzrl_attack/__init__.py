"""Attackers who adapt to what a target replies, and what they gain over the plain request."""

from typing import TYPE_CHECKING

from waltzrl.foundation.lazy import lazy_names

if TYPE_CHECKING:
    from waltzrl_attack.attacker import Attacker as Attacker
    from waltzrl_attack.attacker import ScriptedAttacker as ScriptedAttacker
    from waltzrl_attack.attacks import Attack as Attack
    from waltzrl_attack.attempts import AttackBudget as AttackBudget
    from waltzrl_attack.attempts import AttackPath as AttackPath
    from waltzrl_attack.attempts import AttackRequest as AttackRequest
    from waltzrl_attack.attempts import Attempt as Attempt
    from waltzrl_attack.log import AttackLog as AttackLog
    from waltzrl_attack.run import AttackSetup as AttackSetup
    from waltzrl_attack.run import play_attack as play_attack
    from waltzrl_attack.run import run_attacks as run_attacks
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            "attacker": ("Attacker", "ScriptedAttacker"),
            "attacks": ("Attack",),
            "attempts": ("AttackBudget", "AttackPath", "AttackRequest", "Attempt"),
            "log": ("AttackLog",),
            "run": ("AttackSetup", "play_attack", "run_attacks"),
        },
    )
