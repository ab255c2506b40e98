"""A policy that replies from a file, to measure reviewers on the replies of any model."""

from collections.abc import Mapping, Sequence

from waltzrl.errors import PolicyError
from waltzrl.policies.policy import Sampling
from waltzrl.records import Message, Reply


class SavedPolicy:
    """Looks up the reply to the user's last turn."""

    def __init__(self, replies: Mapping[str, str]) -> None:
        """Keep the replies.

        Args:
            replies: from a user's turn to the reply.
        """
        self._replies = replies

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the saved reply.

        Raises:
            PolicyError: no reply was saved for this turn.
        """
        request = messages[-1].content
        if request not in self._replies:
            raise PolicyError(f"no reply was saved for {request[:60]!r}")
        return Reply(text=self._replies[request])
