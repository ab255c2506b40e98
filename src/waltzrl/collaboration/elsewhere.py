"""Patterns whose collaborations happen elsewhere: behind a gateway, or happened in the past."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from waltzrl.agents import Drafter, Reviewer
from waltzrl.errors import PolicyError
from waltzrl.policies import RemotePolicy, Sampling
from waltzrl.records import Collaboration, Prompt

SHOW = {"X-Waltzrl-Include": "collaboration"}


class ServedPattern:
    """A gateway of ours answers, and shows what was said on the way."""

    def __init__(self, gateway: RemotePolicy, sampling: Sampling) -> None:
        """Ask `gateway`, whose key must be allowed to see drafts, to sample so."""
        self._gateway = gateway
        self._sampling = sampling

    async def __call__(self, prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
        """Answer `prompt` with the gateway's agents; ours are not asked. See `answer`."""
        return await self.answer(prompt)

    async def answer(self, prompt: Prompt) -> Collaboration:
        """Answer `prompt` with the gateway's agents.

        Raises:
            PolicyError: the gateway failed, or does not show drafts.
        """
        completion = await self._gateway.complete(prompt.messages, self._sampling, SHOW)
        if not bytes(completion.waltzrl):
            raise PolicyError(
                "the server shows no collaboration; use a waltzrl gateway, and an API key that was "
                "made with `waltzrl keys add --may-see-drafts`"
            )
        shown = msgspec.json.decode(completion.waltzrl, type=_Shown)
        return replace(shown.collaborations[0], prompt=prompt)


class ReplayPattern:
    """What was said once is said again."""

    def __init__(self, said: Iterable[Collaboration]) -> None:
        """Know `said`, by the ids of its prompts."""
        self._said = {one.prompt.id: one for one in said}

    async def __call__(self, prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
        """Return what was said about `prompt`; nobody is asked.

        Raises:
            PolicyError: nothing was.
        """
        if prompt.id not in self._said:
            raise PolicyError(f"nothing was said about the prompt {prompt.id!r}")
        return replace(self._said[prompt.id], prompt=prompt)


class _Shown(msgspec.Struct):
    collaborations: list[Collaboration]
