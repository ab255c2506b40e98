"""Exports of a memory: trajectories to study; prompts and demonstrations to learn from."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from msgspec import structs

from waltzrl.errors import InputError, WaltzError
from waltzrl.evaluation.collecting.demonstrations import DemonstrationRow, demonstrations
from waltzrl.evaluation.collecting.export import export, require_format
from waltzrl.evaluation.collecting.selection import (
    LabelledPrompt,
    PromptRow,
    Selection,
    collaboration_of,
    labelled_prompts,
    prompts_of,
)
from waltzrl.evaluation.collecting.trajectories import Statistics, collect, statistics
from waltzrl.evaluation.sample_correction import DOUBT, FEWEST_LABELS, labelled_samples
from waltzrl.records import Prompt
from waltzrl.store.memory.erasure import erase_subject, note_export, withdraw_export
from waltzrl.store.memory.opening import existing_memory
from waltzrl.store.memory.safety import SafetyMemory
from waltzrl.store.memory.schemas import SafetyEvaluation, TrainingSample
from waltzrl.store.notices import last_notice, notices_after
from waltzrl.store.privacy.scrubbing import scrub_collaboration

Counted = TypeVar("Counted")
UNLABELLED = "not_labelled_by_people"
"""Reason why an exchange or a prompt is left out where only what people labelled is wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCounts:
    """How many prompts were written, by label, and why the unlabelled ones have none."""

    total_prompts: int
    unsafe: int
    benign: int
    unlabelled: int
    only_reply_labelled: int
    """Unlabelled prompts of which people labelled the reply, but not the request."""
    request_disputed: int
    """Unlabelled prompts about whose request people differ."""
    request_unclear: int
    """Unlabelled prompts about whose request people cannot tell."""
    labelled_by: Mapping[str, int]
    """`PromptRow.label_source` -> prompts."""
    judge_compared: int
    """Prompts that a person labelled, and the judge too."""
    judge_differs: int
    """Prompts among the compared ones that the judge labels otherwise."""
    judge_errors: Mapping[str, "MeasuredError"]
    """Question about a reply -> how often the online judge errs on it, as releases measure it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredError:
    """How often the judge errs on a question: 95 % intervals, None while labels are too few."""

    labels: int
    """Judged replies of the random sample that people labelled."""
    missed: tuple[float, float] | None
    """Share of the replies that the judge calls good and people call bad."""
    false_alarms: tuple[float, float] | None
    """Share of the replies that the judge calls bad and people call good."""


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


def export_samples(
    url: str, path: Path, selection: Selection, *, people_only: bool = False
) -> CollectionResult[Statistics]:
    """Write one row for each round of collected exchanges, and store the rows in the memory too.

    Args:
        url: of the memory.
        path: ends in .json, .jsonl or .parquet.
        selection: which exchanges.
        people_only: write only exchanges whose returned reply a person labelled.

    Raises:
        InputError: there is no memory, no exchange can be scored, or the file cannot be written.
        StorageError: the database is unavailable.
    """
    require_format(path)
    with existing_memory(url) as memory:
        last = last_notice(memory.store.engine)
        collected = _Collected(memory, selection)
        # After `last` was read, so that an erasure in the meantime has a notice after it.
        scored = list(collect(collected, selection))
        samples = [row for row in scored if row.label_source == "person" or not people_only]
        counted, used = statistics(samples), statistics(scored).total_interactions
        left_out = collected.left_out("repeated_or_unscored", used)
        if people_only:
            left_out[UNLABELLED] = used - counted.total_interactions
        _write_recorded(memory, path, samples, left_out)
        memory.store_dir_training_sample(*samples)
        _require_no_erasure(memory, path, samples, last)
    return CollectionResult(counted=counted, left_out=left_out)


def export_prompts(
    url: str, path: Path, selection: Selection, *, people_only: bool = False
) -> CollectionResult[PromptCounts]:
    """Write each prompt of collected exchanges once, with its label where there is one.

    Args:
        url: of the memory.
        path: ends in .json, .jsonl or .parquet.
        selection: which exchanges.
        people_only: write only prompts that people labelled.

    Raises:
        InputError: there is no memory, it has no prompt, or the file cannot be written.
        StorageError: the database is unavailable.
    """
    require_format(path)
    with existing_memory(url) as memory:
        last = last_notice(memory.store.engine)
        collected = _Collected(memory, selection)
        found = labelled_prompts(collected, selection)
        prompts = [prompt for prompt in found if prompt.source == "person" or not people_only]
        rows = [prompt.row for prompt in prompts]
        left_out = collected.left_out("repeated", len(found))
        if people_only:
            left_out[UNLABELLED] = len(found) - len(prompts)
        _write_recorded(memory, path, rows, left_out)
        _require_no_erasure(memory, path, rows, last)
        errors = _measure_judge_errors(memory)
    return CollectionResult(counted=_prompt_counts(prompts, errors), left_out=left_out)


def _prompt_counts(
    prompts: Sequence[LabelledPrompt], errors: Mapping[str, MeasuredError]
) -> PromptCounts:
    labels = Counter(prompt.row.label for prompt in prompts)
    sources = Counter(prompt.source for prompt in prompts)
    compared = [
        prompt for prompt in prompts if prompt.source == "person" and prompt.judged is not None
    ]
    return PromptCounts(
        total_prompts=len(prompts),
        unsafe=labels["unsafe"],
        benign=labels["benign"],
        unlabelled=labels[None],
        only_reply_labelled=sources["only_reply"],
        request_disputed=sources["disputed"],
        request_unclear=sources["unclear"],
        labelled_by={source: sources[source] for source in ("person", "judge")},
        judge_compared=len(compared),
        judge_differs=sum(prompt.judged != prompt.row.label for prompt in compared),
        judge_errors=errors,
    )


def _measure_judge_errors(memory: SafetyMemory) -> dict[str, MeasuredError]:
    """Return the error of the memory's judge, by people's labels of the random sample."""
    errors: dict[str, MeasuredError] = {}
    for question, sample in labelled_samples(memory.calibration()).items():
        missed, precision = sample.misses(DOUBT), sample.precision(DOUBT)
        errors[question] = MeasuredError(
            labels=sample.labels,
            missed=(missed.low, missed.high) if sample.called_good >= FEWEST_LABELS else None,
            false_alarms=(
                (1 - precision.high, 1 - precision.low)
                if sample.called_bad >= FEWEST_LABELS
                else None
            ),
        )
    return errors


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
        _write_recorded(memory, path, rows, left_out)
        _require_no_erasure(memory, path, rows, last)
    counted = DemonstrationCounts(total_demonstrations=len(rows))
    return CollectionResult(counted=counted, left_out=left_out)


def read_remembered_prompts(url: str, selection: Selection) -> list[Prompt]:
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


def _write_recorded(
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
        # A file of before that the failed export left in place must still be reached.
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
