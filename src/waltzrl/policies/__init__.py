"""Policies: a model behind a server, in this process, or scripted.

`LocalPolicy` is in `waltzrl.policies.local`, because importing it loads torch.
"""

from waltzrl.policies.policy import Policy, Sampling
from waltzrl.policies.remote import RemotePolicy
from waltzrl.policies.scripted import SavedPolicy, ScriptedPolicy

__all__ = ["Policy", "RemotePolicy", "Sampling", "SavedPolicy", "ScriptedPolicy"]
