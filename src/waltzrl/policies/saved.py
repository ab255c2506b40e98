"""A policy that replies with what was saved: reviewers can be measured on anybody's replies."""

from collections.abc import Mapping, Sequence

from waltzrl.errors import PolicyError
from waltzrl.policies.policy import Sampling
from waltzrl.records import Message, Reply


class SavedPolicy:
    """Looks the user's last turn up; it has one reply to each, and none to what it never saw."""

    def __init__(self, replies: Mapping[str, str]) -> None:
        """Keep the replies.

        Args:
            replies: from a user's turn to the reply.
        """
        self._replies = replies

    async def reply(self, messages: Sequence[Message], sampling: Sampling) -> Reply:
        """Return the saved reply.

        Raises:
            PolicyError: none was saved for this turn.
        """
        asked = messages[-1].content
        if asked not in self._replies:
            raise PolicyError(f"no reply was saved for {asked[:60]!r}")
        return Reply(text=self._replies[asked])
