"""Things that reply: in this process, over HTTP, or from a script.

`LocalPolicy` stands in `waltzrl.policies.local`, because it loads torch.
"""

from waltzrl.policies.policy import Policy, Sampling
from waltzrl.policies.remote import RemotePolicy
from waltzrl.policies.scripted import SavedPolicy, ScriptedPolicy

__all__ = ["Policy", "RemotePolicy", "Sampling", "SavedPolicy", "ScriptedPolicy"]
