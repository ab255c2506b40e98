"""Chooses the named policy that serves a request; each is a bundle of its own."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from waltzrl.errors import RequestError
from waltzrl.gateway.exchange import Api, Assignment, Bundle, BundleSelector, GatewayRequest
from waltzrl.gateway.keys import Caller
from waltzrl.gateway.settings import PolicyRecipe

OWN = ""
"""The name of the gateway's own settings, which serve where no policy applies."""


class PolicyChooser:
    """Finds the policy of a request: the narrowest of header, key, model and API wins."""

    def __init__(self, policies: Mapping[str, PolicyRecipe], *, is_open: bool) -> None:
        """Index the policies by what they are for.

        Args:
            policies: by name.
            is_open: there are no keys, so that every request may name every policy.
        """
        self._is_open = is_open
        self.names: Collection[str] = policies.keys()
        # Of several patterns the longest is the narrowest.
        self._models = sorted(
            ((pattern, name) for name, recipe in policies.items() for pattern in recipe.models),
            key=lambda pair: -len(pair[0]),
        )
        self._apis: Mapping[Api, str] = {
            api: name for name, recipe in policies.items() for api in recipe.apis
        }

    def choose(self, asked: str, caller: Caller, model: str, api: Api | None) -> str:
        """Return the name of the policy that serves a request; `OWN` for none.

        Args:
            asked: the policy that the request names itself; empty for none.
            caller: of the request.
            model: that it asks for.
            api: that it uses; None if it is no chat.

        Raises:
            RequestError: 403, the key may not use the policy that it asks for.
        """
        if asked:
            allowed = self.names if self._is_open else caller.policies
            if asked not in allowed:
                raise RequestError(
                    403,
                    "permission",
                    f"this key may not use X-Waltzrl-Policy {asked[:100]!r}; it may use "
                    f"{', '.join(allowed) or 'none'}",
                )
            return asked
        if caller.policies:
            return caller.policies[0]
        for pattern, name in self._models:
            if fnmatchcase(model, pattern):
                return name
        return OWN if api is None else self._apis.get(api, OWN)


@dataclass(frozen=True, slots=True)
class PolicySelector:
    """The bundle of each policy, and what selects the gateway's own."""

    own: BundleSelector
    """Selects for the requests without a policy."""
    bundles: Mapping[str, Bundle] = field(default_factory=dict)
    """The name of each policy -> its bundle."""

    def serving(self, policy: str = "") -> Bundle:
        return self.bundles.get(policy) or self.own.serving(policy)

    def assigned(self, request: GatewayRequest) -> Assignment:
        bundle = self.bundles.get(request.policy)
        return self.own.assigned(request) if bundle is None else Assignment(bundle)
