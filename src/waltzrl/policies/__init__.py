"""Policies: a model behind a server, in this process, or scripted.

`LocalPolicy` is in `waltzrl.policies.local`, because importing it loads torch.
"""

from waltzrl.policies.policy import Policy, Sampling, ScriptedPolicy
from waltzrl.policies.remote import RemotePolicy
from waltzrl.policies.saved import SavedPolicy

__all__ = ["Policy", "RemotePolicy", "Sampling", "SavedPolicy", "ScriptedPolicy"]
