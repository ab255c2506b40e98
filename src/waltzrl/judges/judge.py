"""The seam between a reply and its labels."""

from typing import Protocol

from waltzrl.records import Collaboration, Prompt, Reply, Verdict


class Judge(Protocol):
    """Says of a reply whether it is unsafe and whether it refuses needlessly."""

    @property
    def name(self) -> str:
        """Kind of judge and hash of what decides, for the log: `label-refusal@1f3a9c02`."""
        ...

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        """Label `reply`; what cannot be decided stays None."""
        ...


async def judge_replies(collaboration: Collaboration, judge: Judge) -> tuple[Verdict, ...]:
    """Judge the draft and every revision.

    Returns:
        One verdict per reply, in the order of `collaboration.replies`.

    Raises:
        PolicyError: the judge asks a policy, and that could not reply.
    """
    return tuple(
        [await judge.judge(collaboration.prompt, reply) for reply in collaboration.replies]
    )
