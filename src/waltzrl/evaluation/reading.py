"""Collaborations to read: a few of each kind, side by side."""

from collections.abc import Iterable, Sequence

from waltzrl.evaluation.escape import escape
from waltzrl.evaluation.metrics import Metrics, best
from waltzrl.evaluation.rates import draft_acceptable, final_acceptable
from waltzrl.evaluation.rows import EvaluationRow
from waltzrl.records import Feedback, JudgedCollaboration, Prompt, Verdict

KINDS = {
    "repaired": "Repaired: a bad draft became a good reply",
    "still-bad": "Still bad: the reply that leaves is bad",
    "spoiled": "Spoiled: a good draft became a bad reply",
    "false-alarm": "False alarm: a good draft was revised and stayed good",
}
STORIES_OF_A_KIND = 4
"""Per pattern; a page that nobody can finish is not read at all."""


def kind_of(judged: JudgedCollaboration) -> str | None:
    """Which kind of story a collaboration is; None for unscored and uneventful ones."""
    before, after = draft_acceptable(judged), final_acceptable(judged)
    if before is None or after is None:
        return None
    if not after:
        return "spoiled" if before else "still-bad"
    if not before:
        return "repaired"
    return "false-alarm" if judged.collaboration.revised else None


def reading(rows: Sequence[EvaluationRow], table: Sequence[Metrics]) -> str:
    """A block per pattern, the best one open, each with stories of every kind."""
    winner = best(table)
    return "".join(
        _pattern(line.pattern, [r for r in rows if r.pattern == line.pattern], line is winner)
        for line in table
    )


def _pattern(name: str, rows: Sequence[EvaluationRow], opened: bool) -> str:
    stories: dict[str, list[JudgedCollaboration]] = {kind: [] for kind in KINDS}
    for row in rows:
        if row.judged is not None and (kind := kind_of(row.judged)):
            stories[kind].append(row.judged)
    counts = ", ".join(f"{len(s)} {k.replace('-', ' ')}" for k, s in stories.items() if s)
    blocks = "".join(_kind(kind, found) for kind, found in stories.items() if found)
    return (
        f"<details{' open' if opened else ''}><summary>{escape(name)}"
        f"<small>{counts or 'nothing to tell'}</small></summary>{blocks}</details>"
    )


def _kind(kind: str, found: Sequence[JudgedCollaboration]) -> str:
    stories = "".join(_story(judged) for judged in _spread(found))
    return f'<section class="kind {kind}"><h4>{KINDS[kind]}</h4>{stories}</section>'


def _spread(found: Sequence[JudgedCollaboration]) -> Iterable[JudgedCollaboration]:
    """A few, evenly over the set, so that no category crowds out the others."""
    step = max(1, -(-len(found) // STORIES_OF_A_KIND))
    return found[::step]


def _story(judged: JudgedCollaboration) -> str:
    said = judged.collaboration
    parts = [_said("draft", said.draft.text, _verdict(judged.verdicts[0]))]
    verdicts = iter(judged.verdicts[1:])
    for turn in said.rounds:
        parts.append(_feedback(turn.feedback))
        if turn.revision is not None:
            parts.append(_said("revision", turn.revision.text, _verdict(next(verdicts))))
    return (
        f'<article class="story">{_prompt(said.prompt)}'
        f'<div class="turns">{"".join(parts)}</div></article>'
    )


def _prompt(prompt: Prompt) -> str:
    about = " · ".join(part for part in (prompt.label, prompt.category, prompt.id) if part)
    turns = "".join(
        f"<p><b>{escape(message.role)}</b> {escape(message.content)}</p>"
        for message in prompt.messages
    )
    return f'<header><small class="about">{escape(about)}</small>{turns}</header>'


def _said(title: str, text: str, chips: str) -> str:
    return f"<div><h5>{title}{chips}</h5><p>{escape(text)}</p></div>"


def _feedback(feedback: Feedback) -> str:
    if not feedback.well_formed:
        text = feedback.reply.text if feedback.reply else ""
        return _said("feedback", text, _chip("unreadable", "grey"))
    labels = (("unsafe", feedback.unsafe), ("over-refuses", feedback.overrefuse))
    chips = "".join(_chip(name, "amber") for name, given in labels if given)
    reasoning = f'<p class="reasoning">{escape(feedback.reasoning)}</p>' * bool(feedback.reasoning)
    return (
        f'<div class="feedback"><h5>feedback{chips or _chip("content", "green")}</h5>'
        f"{reasoning}<p>{escape(feedback.text)}</p></div>"
    )


def _verdict(verdict: Verdict) -> str:
    if verdict.acceptable is None:
        return _chip("unscored", "grey")
    if verdict.acceptable:
        return _chip("good", "green")
    return _chip("unsafe", "red") if verdict.unsafe else _chip("refuses needlessly", "amber")


def _chip(text: str, colour: str) -> str:
    return f'<span class="chip {colour}">{text}</span>'
