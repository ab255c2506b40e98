"""Patterns other than the loop's own, and the reviewers of the paper's baselines.

Untrained collaboration is `collaborate` with untrained agents; oracle labels are `collaborate`
with an `OracleReviewer`.
"""

import hashlib
import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path

import msgspec

from waltzrl.collaboration import Drafter, Reviewer
from waltzrl.errors import PolicyError
from waltzrl.evaluation.judges.guard import LinearGuard
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.foundation.background import gather_all
from waltzrl.policies import RemotePolicy, Sampling
from waltzrl.records import (
    CANNED_REFUSAL,
    Collaboration,
    Demonstration,
    Feedback,
    Prompt,
    Reply,
    Round,
    Verdict,
    total_usage,
)

UNSAFE_ADVICE = "Your reply is unsafe. Decline instead."
OVERREFUSAL_ADVICE = "Your reply refuses a harmless request. Answer it."
GUARDED_LABELS = ("unsafe", "overrefuse")
"""Names of the guards of a `GuardReviewer`, in its order."""
INCLUDE_COLLABORATION = {"X-Waltzrl-Include": "collaboration"}
"""The header that asks a gateway to return drafts and feedback with its reply."""


async def safeguard(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Replace an unsafe draft by a canned refusal; never revise."""
    draft = await drafter.draft(prompt)
    feedback = await reviewer.review(prompt, draft)
    refusal = Reply(text=CANNED_REFUSAL, origin="canned") if feedback.unsafe else None
    rounds = (Round(feedback=feedback, revision=refusal),)
    return Collaboration(prompt=prompt, draft=draft, rounds=rounds)


async def best_of_3(prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
    """Answer with the one of three drafts that the reviewer trusts most; never revise.

    Its usage is that of all drafts and reviews.

    Args:
        prompt: the conversation up to the user's request.
        drafter: samples each draft; at temperature 0 all are the same.
        reviewer: reviews each draft. The least sum of its probabilities of both labels is best, or
            of its labels where it gives none; the first of equal ones is returned.
    """
    drafts = await gather_all(drafter.draft(prompt) for _ in range(3))
    feedbacks = await gather_all(reviewer.review(prompt, draft) for draft in drafts)
    best, _ = min(zip(drafts, feedbacks, strict=True), key=lambda pair: _measure_doubt(pair[1]))
    reviews = [feedback.reply for feedback in feedbacks if feedback.reply is not None]
    draft = replace(best, usage=total_usage([*drafts, *reviews]))
    return Collaboration(prompt=prompt, draft=draft)


class ServedPattern:
    """Collaborations of a waltzrl gateway."""

    def __init__(self, gateway: RemotePolicy, sampling: Sampling) -> None:
        """Use a gateway.

        Args:
            gateway: its API key must allow the client to see drafts.
            sampling: sent with each request.
        """
        self._gateway = gateway
        self._sampling = sampling

    async def __call__(self, prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
        """Answer `prompt`; see `answer`. The agents are the gateway's, not those passed here."""
        return await self.answer(prompt)

    async def answer(self, prompt: Prompt) -> Collaboration:
        """Answer `prompt` with the gateway's agents.

        Raises:
            PolicyError: the gateway failed, or did not return the collaboration.
        """
        completion = await self._gateway.complete(
            prompt.messages, self._sampling, INCLUDE_COLLABORATION
        )
        if not bytes(completion.waltzrl):
            raise PolicyError(
                "the server returned no collaboration; use a waltzrl gateway, and an API key that "
                "was made with `waltzrl keys add --may-see-drafts`"
            )
        extension = msgspec.json.decode(completion.waltzrl, type=_Extension)
        # The gateway's own prompt has neither the id nor the label of the set's.
        return replace(extension.collaborations[0], prompt=prompt)


class ReplayPattern:
    """Recorded collaborations."""

    def __init__(self, collaborations: Iterable[Collaboration]) -> None:
        """Index the collaborations by the ids of their prompts."""
        self._collaborations = {
            collaboration.prompt.id: collaboration for collaboration in collaborations
        }

    async def __call__(self, prompt: Prompt, drafter: Drafter, reviewer: Reviewer) -> Collaboration:
        """Return the recorded collaboration on `prompt`; no agent is called.

        Raises:
            PolicyError: there is none.
        """
        if prompt.id not in self._collaborations:
            raise PolicyError(f"no collaboration was recorded for the prompt {prompt.id!r}")
        return replace(self._collaborations[prompt.id], prompt=prompt)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Fixed texts of advice, by what is wrong with a reply."""

    unsafe: Sequence[str] = (UNSAFE_ADVICE,)
    overrefuse: Sequence[str] = (OVERREFUSAL_ADVICE,)

    @classmethod
    def demonstrated(cls, demonstrations: Iterable[Demonstration]) -> "Advice":
        """Return the advice of demonstrated reviews; for a label that has none, the default."""
        unsafe, overrefuse = dict[str, None](), dict[str, None]()
        for demonstration in demonstrations:
            for turn in demonstration.collaboration.rounds:
                for flagged, texts in (
                    (turn.feedback.unsafe, unsafe),
                    (turn.feedback.overrefuse, overrefuse),
                ):
                    if flagged and turn.feedback.text:
                        texts[turn.feedback.text] = None
        default = cls()
        return cls(
            unsafe=tuple(unsafe) or default.unsafe,
            overrefuse=tuple(overrefuse) or default.overrefuse,
        )

    def review(self, reply: Reply, verdict: Verdict) -> Feedback:
        """Return the feedback that has the verdict's labels, with a text of these."""
        return self.advise(
            reply, unsafe=verdict.unsafe is True, overrefuse=verdict.overrefuses is True
        )

    def advise(self, reply: Reply, *, unsafe: bool, overrefuse: bool) -> Feedback:
        """Return the feedback with these labels; its text is always the same for a reply."""
        texts = self.unsafe if unsafe else self.overrefuse if overrefuse else ("",)
        digest = hashlib.sha256(reply.text.encode()).digest()
        text = texts[int.from_bytes(digest[:6]) % len(texts)]
        return Feedback(unsafe=unsafe, overrefuse=overrefuse, text=text)


class OracleReviewer:
    """A reviewer with the judge's labels but only fixed advice (paper, row 6)."""

    def __init__(self, judge: Judge, advice: Advice = Advice()) -> None:
        self.judge, self._advice = judge, advice

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        return self._advice.review(reply, await self.judge.judge(prompt, reply))


class GuardReviewer:
    """Linear guards as the reviewer: words decide each label, and the advice is fixed."""

    def __init__(self, unsafe: LinearGuard, overrefuse: LinearGuard) -> None:
        """Use one guard for each label; a reply that is unsafe is no over-refusal."""
        self._unsafe, self._overrefuse = unsafe, overrefuse

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        unsafe = self._unsafe.flags(prompt.request, reply.text)
        overrefuse = not unsafe and self._overrefuse.flags(prompt.request, reply.text)
        return Advice().advise(reply, unsafe=unsafe, overrefuse=overrefuse)


def load_guards(folder: Path) -> GuardReviewer:
    """Return the reviewer of the guards `unsafe.json` and `overrefuse.json` in a folder.

    Raises:
        InputError: one is missing or is not a guard.
    """
    return GuardReviewer(*(LinearGuard.load(folder / f"{label}.json") for label in GUARDED_LABELS))


class KeywordReviewer:
    """A list of words as the reviewer, without context, as in many deployed filters.

    A harmful word in the request or in the reply makes the reply unsafe, whatever it says;
    without one, a refusing phrase in the reply is an over-refusal.
    """

    def __init__(self, harmful: Sequence[str], refusing: Sequence[str]) -> None:
        self._harmful, self._refusing = _any_word(harmful), _any_word(refusing)
        words = "\n".join([*harmful, "", *refusing])
        self.name = f"keywords@{hashlib.sha256(words.encode()).hexdigest()[:12]}"
        """The name in logs: the kind of reviewer, and the hash of its words."""

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        # The list has ASCII apostrophes.
        text = reply.full_text.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        unsafe = bool(self._harmful.search(prompt.request) or self._harmful.search(text))
        overrefuse = not unsafe and bool(self._refusing.search(text))
        return Advice().advise(reply, unsafe=unsafe, overrefuse=overrefuse)


def load_keywords() -> KeywordReviewer:
    """Return the reviewer of the list `keywords.toml` of this package."""
    text = (files("waltzrl.evaluation") / "keywords.toml").read_text("utf-8")
    return KeywordReviewer(**tomllib.loads(text))


def _measure_doubt(feedback: Feedback) -> float:
    """Return 0, best, to 2."""
    if not feedback.well_formed:
        # In the middle, because feedback that cannot be read speaks for and against no draft.
        return 1.0
    unsafe, overrefuse = feedback.risk, feedback.overrefusal_probability
    return (feedback.unsafe if unsafe is None else unsafe) + (
        feedback.overrefuse if overrefuse is None else overrefuse
    )


def _any_word(words: Sequence[str]) -> re.Pattern[str]:
    """Match whole words only; a filter that flags "skill" for "kill" would be a straw man."""
    return re.compile(rf"\b(?:{'|'.join(map(re.escape, words))})\b", re.IGNORECASE)


class _Extension(msgspec.Struct):
    """The part of a gateway's reply that is not OpenAI's."""

    collaborations: list[Collaboration]
