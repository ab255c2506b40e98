"""Take a pair apart: what each reviewer finds in its drafts, and what its revisions fix and ruin.

    python training/links.py PROMPTS AGENTS OUT [REVIEWER ...]

PROMPTS is a file of labelled prompts, AGENTS what `waltzrl export` wrote. The pair's likeliest
drafts are reviewed by each REVIEWER: `own`, its feedback agent; `gateway`, rules and the reviewer
of this package, calibrated, as `waltzrl serve --reviewer smollm2` combines them; `classifier`, that
reviewer's likelier labels; `oracle`, the true labels; all if none is named. The last two give the
advice of the demonstrations. Revisions are the likeliest ones, and sampled at temperature 1. Prints
a table; OUT is an evaluation like any other, for `waltzrl compare`. The same command resumes.
"""

import asyncio
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pair_data import ADVICE
from waltzrl.agents import ConversationAgent, FeedbackAgent, load_wording
from waltzrl.agents.classifier import ClassifierReviewer
from waltzrl.agents.conversation import GivenDraft
from waltzrl.agents.exports import read_pair
from waltzrl.agents.hybrid import HybridReviewer
from waltzrl.agents.identity import calibration_of
from waltzrl.agents.opening import REVIEWER
from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules_reviewer import RulesReviewer
from waltzrl.collaboration import Drafter, Reviewer, collaborate, guarded
from waltzrl.evaluation import EvaluatedSystem, EvaluationRow, evaluate, read_rows
from waltzrl.evaluation.judges.judge import LabelRefusalJudge
from waltzrl.evaluation.metrics import measure, render_percent
from waltzrl.evaluation.patterns import Advice, OracleReviewer
from waltzrl.foundation.jsonl import read_prompts
from waltzrl.policies import Sampling
from waltzrl.policies.local import LocalPolicy
from waltzrl.policies.weights import load_causal_lm
from waltzrl.records import Collaboration, Feedback, Prompt, Reply
from waltzrl_smollm2 import open_classifier

DEMONSTRATED = Advice(unsafe=(ADVICE[True],), overrefuse=(ADVICE[False],))
GATEWAY = "gateway"
REVIEWERS = ("own", GATEWAY, "classifier", "oracle")
NO_REVIEW = "always fine"
REVISIONS = {"greedy": 0.0, "sampled": 1.0}
LONGEST = 48
AT_ONCE = 64


class SharedDrafts:
    """The drafts of an agent, each written once, for all who review them."""

    def __init__(self, agent: ConversationAgent, written: Mapping[str, Reply]) -> None:
        """Take the agent, and what it has written by the ids of the prompts."""
        self._agent, self._written = agent, written
        self._drafts: dict[str, asyncio.Task[Reply]] = {}

    async def collaborate(
        self, prompt: Prompt, reviser: Drafter, reviewer: Reviewer
    ) -> Collaboration:
        """Review the draft; another agent revises it."""
        return await collaborate(prompt, await self._draft(prompt, reviser), reviewer)

    async def guarded(self, prompt: Prompt, reviser: Drafter, reviewer: Reviewer) -> Collaboration:
        """Do the same as a gateway, which refuses what is still flagged."""
        return await guarded(prompt, await self._draft(prompt, reviser), reviewer)

    async def _draft(self, prompt: Prompt, reviser: Drafter) -> GivenDraft:
        draft = self._written.get(prompt.id)
        if draft is None:
            if prompt.id not in self._drafts:
                self._drafts[prompt.id] = asyncio.create_task(self._agent.draft(prompt))
            draft = await self._drafts[prompt.id]
        return GivenDraft(draft, reviser)


class SharedReviews:
    """The reviews of a reviewer, each written once, for all who revise the same drafts."""

    def __init__(self, reviewer: Reviewer) -> None:
        self._reviewer = reviewer
        self._reviews: dict[tuple[str, str], asyncio.Task[Feedback]] = {}

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        key = (prompt.id, reply.text)
        if key not in self._reviews:
            self._reviews[key] = asyncio.create_task(self._reviewer.review(prompt, reply))
        return await self._reviews[key]


class LabelsOnly:
    """A reviewer whose labels are another one's, and whose advice is that of the demonstrations."""

    def __init__(self, reviewer: Reviewer) -> None:
        self._reviewer = reviewer

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        feedback = await self._reviewer.review(prompt, reply)
        text = DEMONSTRATED.advise(
            reply, unsafe=feedback.unsafe, overrefuse=feedback.overrefuse
        ).text
        return replace(feedback, text=text)


def main(prompts: Path, agents: Path, out: Path, chosen: Sequence[str] = REVIEWERS) -> None:
    pair = read_pair(agents)
    wording, judge = load_wording(pair.wording), LabelRefusalJudge()
    conversation, feedback = map(_open_policy, (pair.conversation, pair.feedback))
    reviser = conversation if pair.reviser is None else _open_policy(pair.reviser)

    def drafter(temperature: float) -> ConversationAgent:
        sampling = Sampling(max_new_tokens=LONGEST, temperature=temperature)
        return ConversationAgent(conversation, wording, sampling, reviser=reviser)

    classifier = ClassifierReviewer(open_classifier())
    calibration = calibration_of(f"{REVIEWER}smollm2", None, "", None)
    assert calibration is not None, "this package has one"
    reviewers: dict[str, Reviewer] = {
        "own": FeedbackAgent(feedback, wording, Sampling(max_new_tokens=LONGEST)),
        GATEWAY: HybridReviewer(
            classifier, RulesReviewer(load_rulebook()), calibration=calibration
        ),
        "classifier": LabelsOnly(classifier),
        "oracle": OracleReviewer(judge, DEMONSTRATED),
    }
    written = {
        row.prompt_id: row.judged.collaboration.draft for row in read_rows(out) if row.judged
    }
    shared = SharedDrafts(drafter(0.0), written)
    systems = [
        EvaluatedSystem(
            name=f"{name} {revising}",
            pattern=shared.guarded if name == GATEWAY else shared.collaborate,
            conversation=drafter(temperature),
            reviewer=reviewer,
            agents=str(agents),
        )
        for name in chosen
        for reviewer in [SharedReviews(reviewers[name])]
        for revising, temperature in REVISIONS.items()
    ]
    asked = list(read_prompts(prompts))
    report = partial(print, end="\r", file=sys.stderr)
    rows = asyncio.run(evaluate(systems, asked, judge, out, AT_ONCE, lambda n, of: report(n, of)))
    print("\n".join(table(rows)))


def _without_review(row: EvaluationRow) -> EvaluationRow:
    judged = row.judged
    if judged is not None:
        alone = replace(judged.collaboration, rounds=())
        judged = replace(judged, collaboration=alone, verdicts=judged.verdicts[:1])
    return replace(row, pattern=NO_REVIEW, judged=judged)


def _open_policy(folder: str) -> LocalPolicy:
    loaded = load_causal_lm(folder, "cpu")
    return LocalPolicy(loaded.model, loaded.tokenizer)


def table(rows: Sequence[EvaluationRow]) -> Iterator[str]:
    """Yield the lines of a Markdown table: rates of the final replies, and what became of drafts.

    Of drafts of each kind: how many there are, are flagged, and end acceptable; of acceptable ones,
    how many are flagged, and end unacceptable. The last line is of the drafts alone, as if a
    reviewer found nothing wrong with any.
    """
    yield "| reviewer, revisions | ASR | ORR | F1 | labels right | unsafe | over-refusals | good |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    drafts = (_without_review(row) for row in rows if row.pattern == rows[0].pattern)
    shown = [*rows, *drafts]
    for line in measure(shown):
        judged = [row.judged for row in shown if row.pattern == line.pattern and row.judged]
        rates = [each.value for each in (line.asr, line.orr, line.f1, line.label_accuracy)]
        if line.pattern == NO_REVIEW:
            right = sum(each.verdicts[0].acceptable is True for each in judged)
            rates[-1] = right / len(judged)
        counts = []
        for kind in ("unsafe", "overrefuses", "acceptable"):
            own = [each for each in judged if getattr(each.verdicts[0], kind)]
            flagged = [each for each in own if each.collaboration.revised]
            ended = [
                each for each in flagged if each.verdicts[-1].acceptable is (kind != "acceptable")
            ]
            counts.append(f"{len(own)}, {len(flagged)}, {len(ended)}")
        yield f"| {' | '.join([line.pattern, *map(render_percent, rates), *counts])} |"


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:4]), *([sys.argv[4:]] if sys.argv[4:] else []))
