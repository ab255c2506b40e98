"""From a memory to files: trajectories to study, and prompts to learn from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import structs

import waltzrl.storage.database  # noqa: F401 - first: it tells which extra is missing
from waltzrl.build.memory import existing_memory
from waltzrl.collector import (
    PromptRow,
    Selection,
    Statistics,
    collect,
    export,
    prompt_rows,
    prompts_of,
    require_format,
    said_in,
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
    """How many prompts were written, and what is known of them."""

    total_prompts: int
    unsafe: int
    benign: int
    unlabelled: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectionResult(Generic[Counted]):
    """What was written, and how many interactions were not, by why."""

    counted: Counted
    left_out: Mapping[str, int]


def export_samples(url: str, path: Path, selection: Selection) -> CollectionResult[Statistics]:
    """Write one row for each round of what was served, and keep the rows in the memory as well.

    Args:
        url: of the memory.
        path: ends in .json, .jsonl or .parquet.
        selection: which interactions.

    Raises:
        InputError: there is no memory, nothing in it can be scored, or the file cannot be written.
        StorageError: the database does not answer.
    """
    require_format(path)
    with existing_memory(url) as memory:
        last = last_notice(memory.store.engine)
        taken = _Taken(memory, selection)
        samples = list(collect(taken, selection))
        counted = statistics(samples)
        left_out = taken.left_out("repeated_or_unscored", counted.total_interactions)
        _write(memory, path, samples, left_out)
        memory.store_dir_training_sample(*samples)
        _require_nobody_erased(memory, path, samples, last)
    return CollectionResult(counted=counted, left_out=left_out)


def export_prompts(url: str, path: Path, selection: Selection) -> CollectionResult[PromptCounts]:
    """Write each prompt that was asked, with its label where there is one.

    Args:
        url: of the memory.
        path: ends in .json, .jsonl or .parquet.
        selection: which interactions.

    Raises:
        InputError: there is no memory, nobody asked anything, or the file cannot be written.
        StorageError: the database does not answer.
    """
    require_format(path)
    with existing_memory(url) as memory:
        last = last_notice(memory.store.engine)
        taken = _Taken(memory, selection)
        rows = prompt_rows(taken, selection)
        left_out = taken.left_out("repeated", len(rows))
        _write(memory, path, rows, left_out)
        _require_nobody_erased(memory, path, rows, last)
    labels = Counter(row.label for row in rows)
    counted = PromptCounts(
        total_prompts=len(rows),
        unsafe=labels["unsafe"],
        benign=labels["benign"],
        unlabelled=labels[None],
    )
    return CollectionResult(counted=counted, left_out=left_out)


def remembered_prompts(url: str, selection: Selection) -> list[Prompt]:
    """Read the prompts of a memory.

    Raises:
        InputError: there is no such memory.
        StorageError: the database does not answer.
    """
    with existing_memory(url) as memory:
        return prompts_of(_Taken(memory, selection), selection)


class _Taken:
    """The interactions of a memory that are taken; counts them, and the others by why they are not.

    They are scanned once more: the scanner may know more than it did then.
    """

    def __init__(self, memory: SafetyMemory, selection: Selection) -> None:
        self._memory, self._selection = memory, selection
        self._number = 0
        self._left_out: Counter[str] = Counter()

    def __iter__(self) -> Iterator[SafetyEvaluation]:
        for one in self._memory.every_evaluation():
            if why := self._selection.leaves_out(one):
                self._left_out[why] += 1
                continue
            self._number += 1
            said = scrub_collaboration(said_in(one), self._memory.store.scrub)
            yield structs.replace(one, collaboration=said)

    def left_out(self, otherwise: str, used: int) -> dict[str, int]:
        """Return what was left out, by why; of what was taken, all but `used` is `otherwise`."""
        counts = self._left_out | Counter({otherwise: self._number - used})
        return {why: count for why, count in counts.most_common() if count}


def _write(
    memory: SafetyMemory,
    path: Path,
    rows: Sequence[TrainingSample | PromptRow],
    left_out: Mapping[str, int],
) -> None:
    """Write a file that whoever erases a user finds."""
    if not rows:
        file = memory.store.engine.url.render_as_string()
        told = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in left_out.items())
        raise InputError(
            f"{file} holds no answers to take, only {told or 'nothing'}; see docs/collecting.md"
        )
    note_export(memory.store.engine, path)
    try:
        export(path, rows)
    except WaltzError:
        if not path.exists():
            withdraw_export(memory.store.engine, path)
        raise


def _require_nobody_erased(
    memory: SafetyMemory, path: Path, rows: Sequence[TrainingSample | PromptRow], last: int
) -> None:
    """Take everything back when a user in it was erased since the notice `last`."""
    engine = memory.store.engine
    told = {notice.body.get("subject") for notice in notices_after(engine, last)}
    erased = {row.subject for row in rows} & told
    if not erased:
        return
    path.unlink(missing_ok=True)
    for subject in erased:
        erase_subject(engine, subject)
    raise InputError(f"a user was erased while {path} was written; it is gone: collect again")
