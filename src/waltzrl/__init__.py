"""Two agents that make a language model safe and helpful: trained, measured and served together.

The library: `open_guard` reviews and revises replies, `collaborate` is the loop itself, and the
records and protocols are what both take and return. See docs/library.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltzrl.collaboration import Drafter as Drafter
    from waltzrl.collaboration import Pattern as Pattern
    from waltzrl.collaboration import Reviewer as Reviewer
    from waltzrl.collaboration import collaborate as collaborate
    from waltzrl.collaboration import guarded as guarded
    from waltzrl.errors import CheckpointError as CheckpointError
    from waltzrl.errors import InputError as InputError
    from waltzrl.errors import MissingExtraError as MissingExtraError
    from waltzrl.errors import PolicyError as PolicyError
    from waltzrl.errors import WaltzError as WaltzError
    from waltzrl.evaluation.judges.judge import Judge as Judge
    from waltzrl.gateway.guard import Guard as Guard
    from waltzrl.gateway.guard import LocalGuard as LocalGuard
    from waltzrl.gateway.guard import SyncGuard as SyncGuard
    from waltzrl.gateway.guard_opening import GuardSettings as GuardSettings
    from waltzrl.gateway.guard_opening import open_guard as open_guard
    from waltzrl.policies import Policy as Policy
    from waltzrl.policies import RemotePolicy as RemotePolicy
    from waltzrl.policies import Sampling as Sampling
    from waltzrl.records import Collaboration as Collaboration
    from waltzrl.records import Feedback as Feedback
    from waltzrl.records import Message as Message
    from waltzrl.records import Prompt as Prompt
    from waltzrl.records import Reply as Reply
    from waltzrl.records import Round as Round
    from waltzrl.records import ServedExchange as ServedExchange
    from waltzrl.records import ToolCall as ToolCall
    from waltzrl.records import Usage as Usage
    from waltzrl.records import Verdict as Verdict

__version__ = "0.1.0"
_NAMES = {
    "waltzrl.gateway.guard_opening": ("GuardSettings", "open_guard"),
    "waltzrl.collaboration": ("Drafter", "Pattern", "Reviewer", "collaborate", "guarded"),
    "waltzrl.errors": (
        *("CheckpointError", "InputError", "MissingExtraError", "PolicyError", "WaltzError"),
    ),
    "waltzrl.gateway.guard": ("Guard", "LocalGuard", "SyncGuard"),
    "waltzrl.evaluation.judges.judge": ("Judge",),
    "waltzrl.policies": ("Policy", "RemotePolicy", "Sampling"),
    "waltzrl.records": (
        *("Collaboration", "Feedback", "Message", "Prompt", "Reply", "Round", "ServedExchange"),
        *("ToolCall", "Usage", "Verdict"),
    ),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}
__all__ = sorted(_MODULES)

# As `foundation.lazy` does it for packages; here without it, because `import waltzrl` loads nothing
# else. Hidden from type checkers: to them a module with `__getattr__` has every attribute.
if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value

    def __dir__() -> list[str]:
        return sorted([*globals(), *__all__])
