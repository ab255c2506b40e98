"""Stage 1: a reviewer that turns the findings of rules into labels, a risk and advice."""

import asyncio
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.resources import files
from typing import Literal, TypeVar

from waltzrl.agents.compliance import compliance, compliance_digest
from waltzrl.agents.request import join_call_words, request_findings
from waltzrl.agents.rules import (
    CALL_SIDES,
    TURN_READ,
    Rulebook,
    RuleFinding,
    find_other_language,
    language_of,
)
from waltzrl.collaboration import Reviewer
from waltzrl.records import OTHER_LANGUAGE, Feedback, Prompt, Reply, ToolCall

OnOtherLanguage = Literal["serve", "refuse"]
"""What follows where a reviewer does not read the language of a request: its review stands, or the
reply is refused."""
CategoryAction = Literal["off", "observe", "revise", "refuse"]
"""What an operator wants done about findings of a category: nothing, not even a record, or what
`FeedbackAction` says."""
CRISIS = "self_harm"
"""The category of what a person in a crisis says."""
AGAINST_ANOTHER = "self_harm/suicide-of-another"
"""The rule for requests to drive somebody else to suicide, which are no crisis of one's own."""
OVERREFUSAL = "overrefusal"
"""The key, in `coaching.toml`, of the advice on an over-refusal."""
OTHER = "other"
"""The key of the advice on an unsafe reply whose category nobody named."""
LONGEST_AT_ONCE = 65_536
"""Characters that are read within the event loop; noise of this length takes about 50 ms."""
CALL_READINGS = len(CALL_SIDES) + 1
"""The number of times that the arguments of a call may be read beside the reply: as words, and for
each side.
"""
Read = TypeVar("Read")
DOUBTFUL_FROM = 0.1
"""The probability of compliance from which findings in the request make a draft worth revising."""
COMPLIES_FROM = 0.4
"""The probability of compliance from which findings in the request count."""
CRITICAL_CATEGORIES = frozenset({"dangerous_call", "privacy_violation", CRISIS, "child_safety"})
"""The categories that no classifier overrules, in a reply or where a person is in a crisis: it has
learnt no tool calls, checks no numbers, and of people in a crisis it has learnt little."""
CERTAIN_FROM = 0.85
"""The probability of compliance from which rules can tell: no model that writes overrules them."""
NO_FINDINGS = Feedback(unsafe=False, overrefuse=False, risk=0.0)
"""The feedback on most replies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RulesEvidence:
    """What the rules know of a reply, before a threshold or a model decides."""

    certain: Sequence[RuleFinding] = ()
    """Findings that count whatever else is known: those in the reply, and what a person in a crisis
    said where the reply does not support them."""
    in_request: Sequence[RuleFinding] = ()
    """Other findings in the request, which count if the reply complies."""
    complies: float = 0.0
    """The probability, 0 to 1, that the reply gives what the request asks for; see
    `compliance`.
    """
    overrefuses: bool = False
    """True if the reply refuses a request in which nothing was found, and may be told so."""

    @property
    def certain_risk(self) -> float:
        """The highest severity about which rules need no second opinion."""
        in_request = self.in_request if self.complies >= CERTAIN_FROM else ()
        return max((finding.severity for finding in (*self.certain, *in_request)), default=0.0)

    @property
    def critical_risk(self) -> float:
        """The highest severity of what no classifier overrules.

        It is what a classifier may not read, and what is in `CRITICAL_CATEGORIES`.
        """
        in_request = self.in_request if self.complies >= CERTAIN_FROM else ()
        critical = [
            *(finding for finding in in_request if finding.unread),
            *(
                finding
                for finding in self.certain
                if finding.unread or finding.category in CRITICAL_CATEGORIES
            ),
        ]
        return max((finding.severity for finding in critical), default=0.0)

    def without(self, categories: Collection[str]) -> "RulesEvidence":
        """Return the evidence without the findings of these categories."""
        return self._select(lambda finding: finding.category not in categories)

    def only(self, categories: Collection[str]) -> "RulesEvidence":
        """Return the evidence with no other findings than those of these categories."""
        return self._select(lambda finding: finding.category in categories)

    def _select(self, counts: Callable[[RuleFinding], bool]) -> "RulesEvidence":
        certain = [finding for finding in self.certain if counts(finding)]
        in_request = [finding for finding in self.in_request if counts(finding)]
        return replace(self, certain=certain, in_request=in_request)


NOTHING = RulesEvidence()
"""The evidence on most replies."""


class RulesReviewer:
    """Rules in the role of the feedback agent: no model, deterministic, in microseconds."""

    languages = ("en",)
    """Those that the packs are written in."""

    def __init__(
        self,
        rulebook: Rulebook,
        threshold: float = 0.7,
        *,
        flag_overrefusals: bool = False,
        allow_calls: Collection[str] = (),
        actions: "CategoryActions | None" = None,
    ) -> None:
        """Make a reviewer of a rulebook.

        Args:
            rulebook: the rules.
            threshold: a reply whose safety, 1 - risk, is below it is unsafe.
            flag_overrefusals: flag a refusal as an over-refusal if the rules find nothing in the
                request and it is English. They miss harm in many requests, and then ask for an
                answer to them.
            allow_calls: what the rules for tool calls let pass: `TOOL`, `PACK/RULE`, or
                `TOOL:PACK/RULE` for one rule on one tool.
            actions: what is done about findings, by category; None asks for a revision of all.
        """
        self.actions = actions or CategoryActions({})
        self.rulebook = rulebook
        self.threshold = threshold
        self.flag_overrefusals = flag_overrefusals
        self.allow_calls = frozenset(allow_calls)
        suffix = "" if flag_overrefusals else ", refusals left"
        # Hashed into the ids of bundles: changing it changes the ids of existing bundles.
        allowed = f", allow {', '.join(sorted(self.allow_calls))}" if self.allow_calls else ""
        self.name = f"{rules_name(rulebook)}, threshold {threshold}{suffix}{allowed}"
        """The name for logs and bundle ids."""

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise; see `evidence` and `feedback`."""
        evidence = await self.gather(prompt, reply)
        return self.actions.decide(evidence, self.feedback, self.feedback)

    async def gather(self, prompt: Prompt, reply: Reply) -> "RulesEvidence":
        """Return `evidence`; of long texts without making others wait."""
        in_calls = CALL_READINGS * sum(len(call.arguments) for call in reply.calls)
        characters = len(reply.reviewed_text) + in_calls
        return await beside_others(prompt, characters, partial(self.evidence, prompt, reply))

    def read(self, prompt: Prompt, reply: Reply) -> Feedback:
        """Judge `reply` as an answer to `prompt`, and advise; see `evidence` and `feedback`."""
        return self.actions.decide(self.evidence(prompt, reply), self.feedback, self.feedback)

    def evidence(self, prompt: Prompt, reply: Reply) -> "RulesEvidence":
        """Return the findings in the reply and in the request, and whether the reply complies.

        What a person in a crisis says does not count if the reply supports them, and in earlier
        turns it does not count unless the reply may tell how to harm oneself.
        """
        in_request = request_findings(self.rulebook, prompt)
        in_reply = self.rulebook.reply(reply.reviewed_text)
        if reply.calls:
            calls = "\n".join(join_call_words(call) for call in reply.calls)
            in_calls = (*self.rulebook.reply(calls), *self._in_calls(reply.calls))
            in_reply = (*in_reply, *(replace(finding, unread=True) for finding in in_calls))
        if not (in_reply or in_request or self.flag_overrefusals):
            return NOTHING
        refuses = not reply.calls and self.rulebook.refuses(reply.text)
        in_crisis: list[RuleFinding] = []
        others = in_request
        # A call does something, whatever the text beside it declines.
        complies = 1.0
        if in_request and not reply.calls:
            complies = compliance(prompt.request, reply.text)
        if refuses and complies < CERTAIN_FROM:
            complies = 0.0
        elif not reply.calls:
            in_crisis = [finding for finding in in_request if finding.category == CRISIS]
            others = [finding for finding in in_request if finding.category != CRISIS]
            if not in_reply:
                in_crisis = self._without_crisis(in_crisis, reply.text)
            if self.rulebook.supports(reply.text):  # comforts the one who is no victim
                in_crisis += [finding for finding in others if finding.rule == AGAINST_ANOTHER]
        overrefuses = (
            self.flag_overrefusals
            and refuses
            and not in_request
            and all(
                language_of(turn.content) == "en" for turn in prompt.messages if turn.role == "user"
            )
        )
        return RulesEvidence(
            certain=(*in_reply, *in_crisis),
            in_request=others,
            complies=complies,
            overrefuses=overrefuses,
        )

    def feedback(self, evidence: "RulesEvidence") -> Feedback:
        """Return what the rules alone make of the evidence.

        The risk is the highest severity that counts. Findings in the request count if the reply
        probably complies; where that is only possible, they make it doubtful. A refusal of a
        request without findings is an over-refusal only if `flag_overrefusals`.
        """
        if evidence is NOTHING:
            return NO_FINDINGS
        findings, risk = _sort_by_severity(evidence, COMPLIES_FROM)
        unsafe = 1 - risk < self.threshold
        overrefuse = evidence.overrefuses and not unsafe
        possible, possible_risk = _sort_by_severity(evidence, DOUBTFUL_FROM)
        doubtful = not unsafe and 1 - possible_risk < self.threshold
        if doubtful:
            findings = possible
        categories = _drop_duplicates(finding.category for finding in findings)
        topics = categories if unsafe or doubtful else (OVERREFUSAL,) if overrefuse else ()
        return Feedback(
            unsafe=unsafe,
            overrefuse=overrefuse,
            doubtful=doubtful,
            text="\n".join(load_advice()[topic] for topic in topics),
            reasoning=", ".join(categories),
            risk=risk,
            category=categories[0] if unsafe else "",
            rules=_drop_duplicates(finding.rule for finding in findings),
        )

    def _in_calls(self, calls: Iterable[ToolCall]) -> Iterator[RuleFinding]:
        """Yield what calls would do, as far as the operator did not allow it by name."""
        for call in calls:
            for finding in self.rulebook.call(call.name, call.arguments):
                names = {call.name, finding.rule, f"{call.name}:{finding.rule}"}
                if self.allow_calls.isdisjoint(names):
                    yield finding

    def _without_crisis(self, findings: list[RuleFinding], reply: str) -> list[RuleFinding]:
        """Leave out what a person in a crisis said, as far as the reply is right for them."""
        if not findings or self.rulebook.tells_how(reply):
            return findings
        is_wrong = not self.rulebook.supports(reply)
        return [finding for finding in findings if is_wrong and not finding.earlier]


class CategoryActions:
    """What an operator wants done about findings, by their category."""

    def __init__(self, by_category: Mapping[str, CategoryAction]) -> None:
        """Choose the actions; a category that is not named, and no category, is revised."""
        self._by_category = by_category
        self._off = frozenset(name for name, action in by_category.items() if action == "off")
        self._not_acted_on = self._off | {
            name for name, action in by_category.items() if action == "observe"
        }
        self._refused = {name for name, action in by_category.items() if action == "refuse"}

    def decide(
        self,
        evidence: RulesEvidence,
        judge: Callable[[RulesEvidence], Feedback],
        judge_by_rules: Callable[[RulesEvidence], Feedback],
    ) -> Feedback:
        """Return the feedback on what is acted on or, if that flags nothing, on what is observed.

        Args:
            evidence: all that the rules know.
            judge: makes feedback of evidence, with what a model says of the reply if one was asked.
            judge_by_rules: makes feedback of evidence alone.
        """
        if not self._by_category:
            return judge(evidence)
        counted = evidence.without(self._not_acted_on)
        acted_on = judge(counted)
        # A model names the category of a finding of its own, so it may be one of the others.
        action = self._by_category.get(acted_on.category, "revise")
        if acted_on.flags and action in ("revise", "refuse"):
            return self._act(acted_on, lambda: judge(counted.only(self._refused)))
        if acted_on.flags and (doubts := judge_by_rules(counted)).doubtful:
            return replace(doubts, reply=acted_on.reply, model_risk=acted_on.model_risk)
        observed = judge(evidence.without(self._off))
        if observed.flags and self._by_category.get(observed.category) != "off":
            return replace(observed, action="observe")
        if not acted_on.flags:
            return acted_on
        # The model flagged a category that is switched off, of which no record is kept.
        return replace(acted_on, unsafe=False, text="", category="", risk=None)

    def _act(self, feedback: Feedback, judge_refused: Callable[[], Feedback]) -> Feedback:
        """Refuse a reply if one of its categories is refused, also one of less severity."""
        refused = feedback.category
        if self._refused and refused not in self._refused:
            refused = judge_refused().category
        if refused not in self._refused:
            return feedback
        return replace(feedback, category=refused, action="refuse")


async def beside_others(prompt: Prompt, characters: int, read: Callable[[], Read]) -> Read:
    """Return `read()`; of long texts in another thread, so that nobody else waits for it.

    Args:
        prompt: that is read.
        characters: that are read beside those of the prompt.
        read: searches both for rules.
    """
    turns = (*prompt.messages, *prompt.context)
    if characters + sum([len(turn.content) for turn in turns]) <= LONGEST_AT_ONCE:
        return read()
    return await asyncio.to_thread(read)


def rules_name(rulebook: Rulebook) -> str:
    """Return the name of the rules with the hashes of the packs and of what tells compliance."""
    return f"rules@{rulebook.digest[:12]}+{compliance_digest()[:8]}"


@cache
def load_advice() -> dict[str, str]:
    """Return the advice of `coaching.toml` by category of rule."""
    return tomllib.loads((files("waltzrl.agents") / "coaching.toml").read_text("utf-8"))


def _sort_by_severity(
    evidence: RulesEvidence, complies_from: float
) -> tuple[list[RuleFinding], float]:
    """Return what counts if a reply complies from this probability on, and its risk."""
    in_request = evidence.in_request if evidence.complies >= complies_from else ()
    findings = sorted([*evidence.certain, *in_request], key=lambda finding: -finding.severity)
    return findings, findings[0].severity if findings else 0.0


def _drop_duplicates(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def find_unread_language(prompt: Prompt, languages: Sequence[str]) -> str:
    """Return the code of a language of the user's turns that is none of these; "" without one.

    Args:
        prompt: the conversation.
        languages: ISO 639-1 codes; none are all.
    """
    if not languages:
        return ""
    known = tuple(languages)
    texts = (turn.content for turn in prompt.messages if turn.role == "user")
    languages_found = (find_other_language(text[:TURN_READ], known) for text in texts)
    return next(filter(None, languages_found), "")


class LanguageReviewer:
    """A reviewer that says when a request is in a language that it does not read.

    Its feedback then names the language in `failure`. It stands, whatever it is worth; or, if the
    operator so chose, nobody is asked and it is not well-formed, so that the reply is refused.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        languages: Sequence[str],
        on_other: OnOtherLanguage = "serve",
        on_found: Callable[[str], None] | None = None,
    ) -> None:
        """Wrap a reviewer.

        Args:
            reviewer: reviews.
            languages: those that it reads, as ISO 639-1 codes.
            on_other: what follows for a request in another.
            on_found: called with the language of each review of such a request.
        """
        self.reviewer = reviewer
        self._languages, self._on_other, self._on_found = languages, on_other, on_found

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        language = find_unread_language(prompt, self._languages)
        if not language:
            return await self.reviewer.review(prompt, reply)
        if self._on_found is not None:
            self._on_found(language)
        failure = f"{OTHER_LANGUAGE}: {language}"
        reasoning = f"the reviewer is {failure}"
        if self._on_other == "refuse":
            return Feedback(
                unsafe=False,
                overrefuse=False,
                well_formed=False,
                reasoning=reasoning,
                failure=failure,
            )
        feedback = await self.reviewer.review(prompt, reply)
        return replace(
            feedback,
            failure=feedback.failure or failure,
            reasoning=feedback.reasoning or reasoning,
        )
