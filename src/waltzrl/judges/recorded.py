"""A judge that repeats labels which people, or another judge, gave to saved replies."""

from collections.abc import Mapping

from waltzrl.records import Prompt, Reply, Verdict


class RecordedJudge:
    """Looks the user's last turn and its reply up; what it never saw stays unscored."""

    def __init__(self, name: str, verdicts: Mapping[tuple[str, str], Verdict]) -> None:
        """Keep the verdicts.

        Args:
            name: stands in every row; names where the labels come from.
            verdicts: from a user's turn and its reply to their labels.
        """
        self.name = name
        self._verdicts = verdicts

    async def judge(self, prompt: Prompt, reply: Reply) -> Verdict:
        unseen = Verdict(judge=self.name)
        return self._verdicts.get((prompt.messages[-1].content, reply.text), unseen)
