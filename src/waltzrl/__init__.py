"""Two agents that make a language model safe and helpful: trained, measured and served together.

The library: `open_guard` reviews and revises replies, `collaborate` is the loop itself, and the
records and protocols are what both take and return. See docs/library.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from waltzrl.collaboration import Drafter, Pattern, Reviewer, collaborate, guarded
    from waltzrl.errors import (
        CheckpointError,
        InputError,
        MissingExtraError,
        PolicyError,
        WaltzError,
    )
    from waltzrl.evaluation.judges.judge import Judge
    from waltzrl.gateway.guard import Guard, LocalGuard, SyncGuard
    from waltzrl.gateway.guard_opening import GuardSettings, open_guard
    from waltzrl.policies import Policy, RemotePolicy, Sampling
    from waltzrl.records import (
        Collaboration,
        Feedback,
        Message,
        Prompt,
        Reply,
        Round,
        ServedExchange,
        ToolCall,
        Usage,
        Verdict,
    )

__version__ = "0.1.0"
__all__ = [
    "CheckpointError",
    "Collaboration",
    "Drafter",
    "Feedback",
    "Guard",
    "GuardSettings",
    "InputError",
    "Judge",
    "LocalGuard",
    "Message",
    "MissingExtraError",
    "Pattern",
    "Policy",
    "PolicyError",
    "Prompt",
    "RemotePolicy",
    "Reply",
    "Reviewer",
    "Round",
    "Sampling",
    "ServedExchange",
    "SyncGuard",
    "ToolCall",
    "Usage",
    "Verdict",
    "WaltzError",
    "collaborate",
    "guarded",
    "open_guard",
]
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
