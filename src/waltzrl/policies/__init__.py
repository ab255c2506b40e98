"""Policies: a model behind a server, in this process, or scripted.

`LocalPolicy` is in `waltzrl.policies.local`, because importing it loads torch.
"""

from waltzrl.policies.policy import GuardPolicy, Policy, Sampling
from waltzrl.policies.remote import RemotePolicy
from waltzrl.policies.scripted import SavedPolicy, ScriptedPolicy

__all__ = ["GuardPolicy", "Policy", "RemotePolicy", "Sampling", "SavedPolicy", "ScriptedPolicy"]
