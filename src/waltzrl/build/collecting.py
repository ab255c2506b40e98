"""Exports of a memory: trajectories to study; prompts and demonstrations to learn from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import structs

from waltzrl.build.memory import existing_memory
from waltzrl.collector import (
    DemonstrationRow,
    PromptRow,
    Selection,
    Statistics,
    collaboration_of,
    collect,
    demonstrations,
    export,
    labelled_prompts,
    prompts_of,
    require_format,
    statistics,
)
from waltzrl.errors import InputError, WaltzError
from waltzrl.memory.erasure import erase_subject, note_export, withdraw_export
from waltzrl.memory.safety import SafetyMemory
from waltzrl.memory.schemas import SafetyEvaluation, TrainingSample
from waltzrl.privacy import scrub_collaboration
from waltzrl.records import Prompt
from waltzrl.storage.notices import last_notice, notices_after

Counted = TypeVar("Counted")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCounts:
    """How many prompts were written, by label, and why the unlabelled ones have none."""

    total_prompts: int
    unsafe: int
    benign: int
    unlabelled: int
    only_reply_labelled: int
    """Of the unlabelled: people labelled the reply, but not the request."""
    request_disputed: int
    """Of the unlabelled: people differ about the request."""
    request_unclear: int
    """Of the unlabelled: people cannot tell about the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemonstrationCounts:
    """How many demonstrations were written."""

    total_demonstrations: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionResult(Generic[Counted]):
    """What was written, and what was not."""

    counted: Counted
    left_out: Mapping[str, int]
    """Reason -> exchanges."""


def export_samples(url: str, path: Path, selection: Selection) -> CollectionResult[Statistics]:
    """Write one row for each round of collected exchanges, and store the rows in the memory too.

    Args:
        url: of the memory.
        path: ends in .json, .jsonl or .parquet.
        selection: which exchanges.

    Raises:
        InputError: there is no memory, no exchange can be scored, or the file cannot be written.
        StorageError: the database is unavailable.
    """
    require_format(path)
    with existing_memory(url) as memory:
        last = last_notice(memory.store.engine)
        collected = _Collected(memory, selection)
        samples = list(collect(collected, selection))
        counted = statistics(samples)
        left_out = collected.left_out("repeated_or_unscored", counted.total_interactions)
        _write(memory, path, samples, left_out)
        memory.store_dir_training_sample(*samples)
        _require_no_erasure(memory, path, samples, last)
    return CollectionResult(counted=counted, left_out=left_out)


def export_prompts(url: str, path: Path, selection: Selection) -> CollectionResult[PromptCounts]:
    """Write each prompt of collected exchanges once, with its label where there is one.

    Args:
        url: of the memory.
        path: ends in .json, .jsonl or .parquet.
        selection: which exchanges.

    Raises:
        InputError: there is no memory, it has no prompt, or the file cannot be written.
        StorageError: the database is unavailable.
    """
    require_format(path)
    with existing_memory(url) as memory:
        last = last_notice(memory.store.engine)
        collected = _Collected(memory, selection)
        prompts = labelled_prompts(collected, selection)
        rows = [row for row, _ in prompts]
        left_out = collected.left_out("repeated", len(rows))
        _write(memory, path, rows, left_out)
        _require_no_erasure(memory, path, rows, last)
    labels = Counter(row.label for row in rows)
    sources = Counter(source for _, source in prompts)
    counted = PromptCounts(
        total_prompts=len(rows),
        unsafe=labels["unsafe"],
        benign=labels["benign"],
        unlabelled=labels[None],
        only_reply_labelled=sources["only_reply"],
        request_disputed=sources["disputed"],
        request_unclear=sources["unclear"],
    )
    return CollectionResult(counted=counted, left_out=left_out)


def export_demonstrations(
    url: str, path: Path, selection: Selection
) -> CollectionResult[DemonstrationCounts]:
    """Write the replies that people corrected in collected exchanges, for `data.demonstrations`.

    Args:
        url: of the memory.
        path: ends in .jsonl.
        selection: which exchanges.

    Raises:
        InputError: there is no memory, no reply was corrected, or the file cannot be written.
        StorageError: the database is unavailable.
    """
    if path.suffix != ".jsonl":
        raise InputError(f"{path}: demonstrations are JSON Lines; use a name that ends in .jsonl")
    with existing_memory(url) as memory:
        last = last_notice(memory.store.engine)
        collected = _Collected(memory, selection)
        rows = demonstrations(collected, selection)
        left_out = collected.left_out("uncorrected_or_repeated", len(rows))
        _write(memory, path, rows, left_out)
        _require_no_erasure(memory, path, rows, last)
    counted = DemonstrationCounts(total_demonstrations=len(rows))
    return CollectionResult(counted=counted, left_out=left_out)


def remembered_prompts(url: str, selection: Selection) -> list[Prompt]:
    """Return the prompts of a memory.

    Raises:
        InputError: there is no such memory.
        StorageError: the database is unavailable.
    """
    with existing_memory(url) as memory:
        return prompts_of(_Collected(memory, selection), selection)


class _Collected:
    """Iterates over the collected exchanges of a memory, and counts those that are left out.

    They are scrubbed again, because the scanner may have improved since they were stored.
    """

    def __init__(self, memory: SafetyMemory, selection: Selection) -> None:
        self._memory, self._selection = memory, selection
        self._count = 0
        self._left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[SafetyEvaluation]:
        scrub = self._memory.store.scrub
        for evaluation in self._memory.every_evaluation():
            if reason := self._selection.leaves_out(evaluation):
                self._left_out[reason] += 1
                continue
            self._count += 1
            yield structs.replace(
                evaluation,
                collaboration=scrub_collaboration(collaboration_of(evaluation), scrub),
                labels=tuple(
                    structs.replace(event, correction=scrub(event.correction))
                    for event in evaluation.labels
                ),
            )

    def left_out(self, otherwise: str, used: int) -> dict[str, int]:
        """Return reason -> exchanges; collected ones beyond `used` have the reason `otherwise`."""
        counts = self._left_out | Counter({otherwise: self._count - used})
        return {reason: count for reason, count in counts.most_common() if count}


def _write(
    memory: SafetyMemory,
    path: Path,
    rows: Sequence[TrainingSample | PromptRow | DemonstrationRow],
    left_out: Mapping[str, int],
) -> None:
    """Write a file, and record it first, so that erasing a user reaches it."""
    if not rows:
        url = memory.store.engine.url.render_as_string()
        reasons = [f"{count} {reason.replace('_', ' ')}" for reason, count in left_out.items()]
        raise InputError(
            f"{url} has no exchange to collect, only {', '.join(reasons) or 'nothing'}; "
            "see docs/collecting.md"
        )
    note_export(memory.store.engine, path)
    try:
        export(path, rows)
    except WaltzError:
        if not path.exists():
            withdraw_export(memory.store.engine, path)
        raise


def _require_no_erasure(
    memory: SafetyMemory,
    path: Path,
    rows: Sequence[TrainingSample | PromptRow | DemonstrationRow],
    last: int,
) -> None:
    """Delete file and samples if a user in them was erased since the notice `last`."""
    engine = memory.store.engine
    subjects = {notice.body.get("subject") for notice in notices_after(engine, last)}
    erased = {row.subject for row in rows} & subjects
    if not erased:
        return
    path.unlink(missing_ok=True)
    for subject in erased:
        erase_subject(engine, subject)
    raise InputError(f"a user was erased while {path} was written; it was deleted; collect again")
