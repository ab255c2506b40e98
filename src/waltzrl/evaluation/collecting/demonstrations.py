"""Replies that people corrected, as demonstrations for the warm-up."""

from collections.abc import Iterable
from dataclasses import replace

import msgspec

from waltzrl.evaluation.collecting.selection import REMEMBERED, Selection, collaboration_of
from waltzrl.records import Collaboration, Reply
from waltzrl.store.memory.labels import in_force
from waltzrl.store.memory.schemas import SafetyEvaluation


class DemonstrationRow(msgspec.Struct, frozen=True, kw_only=True):
    """A `waltzrl.records.Demonstration` as a line of a file, with its user."""

    subject: str
    """Digest of the user, by which `waltzrl erase` finds the row."""
    id: str
    """Id of the exchange, by which `waltzrl erase` finds the row too."""
    collaboration: Collaboration
    """The prompt without a label, and the corrected reply as its draft."""


def demonstrations(
    evaluations: Iterable[SafetyEvaluation], selection: Selection
) -> list[DemonstrationRow]:
    """Return the corrected replies of collected exchanges, the oldest exchange first.

    Each shows the conversation agent a draft. Of an exchange that several people corrected the
    newest correction counts; equal corrections of equal prompts come once.
    """
    rows: dict[tuple[object, ...], DemonstrationRow] = {}
    for evaluation in filter(selection.takes, evaluations):
        corrected = [event for event in in_force(evaluation.labels).values() if event.correction]
        if not corrected:
            continue
        correction = max(corrected, key=lambda event: event.time).correction
        prompt = replace(
            collaboration_of(evaluation).prompt, id=evaluation.id, label=None, source=REMEMBERED
        )
        collaboration = Collaboration(prompt=prompt, draft=Reply(text=correction, origin="given"))
        row = DemonstrationRow(
            subject=evaluation.subject, id=evaluation.id, collaboration=collaboration
        )
        rows.setdefault((prompt.messages, correction), row)
    return list(rows.values())
