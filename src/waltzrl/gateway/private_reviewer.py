"""A reviewer that gets no personal data which the scanner finds: `privacy.upstream`."""

import asyncio
from dataclasses import replace
from functools import partial

from waltzrl.collaboration import Reviewer
from waltzrl.gateway.private_upstream import LONGEST_AT_ONCE
from waltzrl.records import Collaboration, Feedback, Prompt, Reply
from waltzrl.store.privacy.detection import Detector
from waltzrl.store.privacy.scrubbing import scrub_collaboration
from waltzrl.store.privacy.stand_ins import StandIns


class PrivateReviewer:
    """Shows a model on another server stand-ins, and restores the pieces in its feedback.

    It stands in front of the model and not of its policy, which gets all turns as one text: in a
    turn of its own a text can be searched as it was written.
    """

    def __init__(self, reviewer: Reviewer, detector: Detector, *, numbered: bool) -> None:
        """Wrap a reviewer; see `StandIns` for the other arguments."""
        self._reviewer = reviewer
        self._detector, self._numbered = detector, numbered

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Review `reply` as an answer to `prompt`, without the personal data in both.

        Raises:
            PolicyError: as the reviewer.
        """
        turns = (*prompt.context, *prompt.messages)
        written = "\n".join([*(turn.full_text for turn in turns), reply.reviewed_text])
        stand_ins = StandIns(self._detector, numbered=self._numbered, written=written)
        conceal = partial(
            stand_ins.conceal_all,
            Collaboration(prompt=prompt, draft=reply),
            lambda said: scrub_collaboration(said, stand_ins.conceal),
        )
        large = len(written) > LONGEST_AT_ONCE
        said = await asyncio.to_thread(conceal) if large else conceal()
        feedback = await self._reviewer.review(said.prompt, said.draft)
        if not stand_ins.restores:
            return feedback
        raw = feedback.reply
        return replace(
            feedback,
            text=stand_ins.restore(feedback.text),
            reasoning=stand_ins.restore(feedback.reasoning),
            reply=raw and replace(raw, text=stand_ins.restore(raw.text)),
        )
