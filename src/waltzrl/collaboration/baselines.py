"""The baselines of the paper's table, each a pattern or a reviewer for the one loop.

Untrained collaboration is `collaborate` with agents that were not trained; oracle labels are
`collaborate` with an `OracleReviewer`.
"""

import hashlib
import re
import tomllib
from collections.abc import Sequence
from importlib.resources import files

from waltzrl.agents import Drafter, Reviewer
from waltzrl.collaboration.loop import collaborate
from waltzrl.judges import Judge, LinearGuard
from waltzrl.records import CANNED_REFUSAL, Collaboration, Feedback, Prompt, Reply, Round

UNSAFE_ADVICE = "Your reply is unsafe. Decline instead."
OVERREFUSAL_ADVICE = "Your reply refuses a harmless request. Answer it."


async def draft_only(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Answer without feedback."""
    return await collaborate(prompt, drafter, reviewer, max_rounds=0)


async def safeguard(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Replace a draft that the reviewer calls unsafe by a canned refusal; repair nothing."""
    draft = await drafter.draft(prompt)
    feedback = await reviewer.review(prompt, draft)
    refusal = Reply(text=CANNED_REFUSAL, origin="canned") if feedback.unsafe else None
    rounds = (Round(feedback=feedback, revision=refusal),)
    return Collaboration(prompt=prompt, draft=draft, rounds=rounds)


class OracleReviewer:
    """A reviewer that knows the judge's labels but has only template words (paper, row 6)."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        verdict = await self.judge.judge(prompt, reply)
        unsafe, overrefuse = verdict.unsafe is True, verdict.overrefuses is True
        advice = UNSAFE_ADVICE if unsafe else OVERREFUSAL_ADVICE if overrefuse else ""
        return Feedback(unsafe=unsafe, overrefuse=overrefuse, text=advice)


class GuardReviewer:
    """A guard in the reviewer's place: it flags what is unsafe and has no advice."""

    def __init__(self, guard: LinearGuard) -> None:
        self.guard = guard

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        flagged = self.guard.flags(prompt.request, reply.text)
        return Feedback(unsafe=flagged, overrefuse=False)


class KeywordReviewer:
    """A plain list of words in the reviewer's place, as many guards have one: it knows no context.

    A harmful word in the request or in the reply is unsafe, whatever is said about it; where there
    is none, a refusing phrase in the reply is an over-refusal.
    """

    def __init__(self, harmful: Sequence[str], refusing: Sequence[str]) -> None:
        self._harmful, self._refusing = _any_of(harmful), _any_of(refusing)
        words = "\n".join([*harmful, "", *refusing])
        self.name = f"keywords@{hashlib.sha256(words.encode()).hexdigest()[:12]}"
        """For the log: what it is, and the hash of its words."""

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        text = reply.full_text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        unsafe = bool(self._harmful.search(prompt.request) or self._harmful.search(text))
        overrefuse = not unsafe and bool(self._refusing.search(text))
        advice = UNSAFE_ADVICE if unsafe else OVERREFUSAL_ADVICE if overrefuse else ""
        return Feedback(unsafe=unsafe, overrefuse=overrefuse, text=advice)


def load_keywords() -> KeywordReviewer:
    """Make the reviewer of the list beside this file, `keywords.toml`."""
    text = (files("waltzrl.collaboration") / "keywords.toml").read_text("utf-8")
    return KeywordReviewer(**tomllib.loads(text))


def _any_of(words: Sequence[str]) -> re.Pattern[str]:
    """Match whole words only: the guard that flags a skill for the kill in it is a straw man."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)
