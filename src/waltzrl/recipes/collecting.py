"""From a memory to files: trajectories to study, and prompts to learn from."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from msgspec import structs

import waltzrl.memory.database  # noqa: F401 - first: it tells which extra is missing
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
from waltzrl.memory.notices import last_notice, notices_after
from waltzrl.memory.safety import SafetyMemory
from waltzrl.memory.schemas import SafetyEvaluation, TrainingSample
from waltzrl.privacy.collaborations import scrub_collaboration
from waltzrl.recipes.remembering import opened_memory
from waltzrl.records import Prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCounts:
    """How many prompts were written, and what is known of them."""

    total_prompts: int
    unsafe: int
    benign: int
    unlabelled: int


def export_samples(url: str, path: Path, selection: Selection) -> Statistics:
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
    with opened_memory(url) as memory:
        last = last_notice(memory.store.engine)
        samples = list(collect(_evaluations(memory, selection), selection))
        _write(memory, path, samples)
        memory.store_dir_training_sample(*samples)
        _require_nobody_erased(memory, path, samples, last)
    return statistics(samples)


def export_prompts(url: str, path: Path, selection: Selection) -> PromptCounts:
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
    with opened_memory(url) as memory:
        last = last_notice(memory.store.engine)
        rows = prompt_rows(_evaluations(memory, selection), selection)
        _write(memory, path, rows)
        _require_nobody_erased(memory, path, rows, last)
    labels = Counter(row.label for row in rows)
    return PromptCounts(
        total_prompts=len(rows),
        unsafe=labels["unsafe"],
        benign=labels["benign"],
        unlabelled=labels[None],
    )


def remembered_prompts(url: str, selection: Selection) -> list[Prompt]:
    """Read the prompts of a memory.

    Raises:
        InputError: there is no such memory.
        StorageError: the database does not answer.
    """
    with opened_memory(url) as memory:
        return prompts_of(_evaluations(memory, selection), selection)


def _evaluations(memory: SafetyMemory, selection: Selection) -> Iterator[SafetyEvaluation]:
    """Yield what is taken, scanned once more: the scanner may know more than it did then."""
    for one in filter(selection.takes, memory.every_evaluation()):
        said = scrub_collaboration(said_in(one), memory.store.scrub)
        yield structs.replace(one, collaboration=said)


def _write(memory: SafetyMemory, path: Path, rows: Sequence[TrainingSample | PromptRow]) -> None:
    """Write a file that whoever erases a user finds."""
    if not rows:
        file = memory.store.engine.url.render_as_string()
        raise InputError(
            f"{file} holds no such answers, with consent, from the users asked for; serve some "
            "first, or change --held-out"
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
