"""The log of an evaluation: one JSON line per collaboration, safe to cut off at any byte."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import msgspec

from waltzrl.errors import InputError
from waltzrl.evaluation.judges.saved import SavedVerdict, answers_of, read_saved_verdicts
from waltzrl.foundation.files import disk_errors, whole_lines, write_bytes
from waltzrl.records import Collaboration, JudgedCollaboration, Reply, Round

LOG_NAME = "rows.jsonl"

Case = tuple[str, int]
"""Prompt id and sample: what a row of one pattern is about."""
Key = tuple[str, Case]
"""Pattern and case: what a row is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """The result of one pattern on one prompt."""

    pattern: str
    prompt_id: str
    sample: int = 0
    """The number of the reply among those of the pattern to the prompt; the first is 0."""
    judge: str
    """Name of the judge that gave the verdicts."""
    agents: str = ""
    """The agents that took part, and how: `EvaluatedSystem.agents`."""
    judged: JudgedCollaboration | None = None
    """The judged collaboration; None when a policy or the judge failed, and `error` then says how.
    Failed rows enter no rate."""
    unjudged: Collaboration | None = None
    """What was said, where only the judge failed: it is not generated again."""
    milliseconds: float = 0.0
    """Wall time of the collaboration, waiting in a batch included."""
    tokens: int | None = None
    """Tokens that all policies together wrote: draft, feedback, revisions."""
    error: str = ""

    @property
    def case(self) -> Case:
        return (self.prompt_id, self.sample)

    @property
    def key(self) -> Key:
        return (self.pattern, self.case)

    @property
    def revisions(self) -> set[str]:
        """The revisions of the judge's model, as its answers name them; empty without a model."""
        verdicts = self.judged.verdicts if self.judged is not None else ()
        return {answer.revision for verdict in verdicts for answer in verdict.answers}


class RowLog:
    """Appends rows to a folder's log; each row has left this process before the next is written."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_NAME
        with disk_errors(self.path):
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
            # what a killed run left of its last row goes; that row is generated again
            self._file.truncate(sum(map(len, whole_lines(self.path))))

    def append(self, row: EvaluationRow) -> None:
        with disk_errors(self.path):
            self._file.write(_encode_row(row))
            self._file.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with disk_errors(self.path):  # closing writes again what did not fit
            self._file.close()


def read_rows(folder: Path) -> list[EvaluationRow]:
    """Read a folder's log; of several rows about one pattern and case the last one counts.

    A torn last line is left out. A folder without a log has no rows.

    Raises:
        InputError: the log cannot be read, or a line is not a row.
    """
    path = folder / LOG_NAME
    try:
        lines = list(whole_lines(path))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; choose another folder") from error
    rows: dict[Key, EvaluationRow] = {}
    for number, line in enumerate(lines, start=1):
        try:
            # json, not msgspec.json: an agent may write a lone surrogate, and only json carries it
            row = msgspec.convert(json.loads(line), EvaluationRow)
        except ValueError as error:
            raise InputError(
                f"{path}:{number}: not an evaluation row ({error}); "
                "delete the line to have it generated again"
            ) from error
        rows[row.key] = row
    return list(rows.values())


def read_evaluation(folder: Path) -> list[EvaluationRow]:
    """Read the rows of a folder that must have some; see `read_rows`.

    Raises:
        InputError: it has none.
    """
    if rows := read_rows(folder):
        return rows
    raise InputError(f"{folder} holds no evaluation; give a folder that `waltzrl evaluate` wrote")


def read_verdicts(path: Path) -> dict[tuple[str, str], SavedVerdict]:
    """Return the verdicts on replies, of the log in a folder or of the lines of a file.

    The key is the prompt's last turn and the reply. A log may hold a reply several times: an answer
    in which its verdicts differ is unscored.

    Raises:
        InputError: the log or the file cannot be read, or holds nothing.
    """
    if not path.is_dir():
        return read_saved_verdicts(path)
    verdicts: dict[tuple[str, str], SavedVerdict] = {}
    for row in read_evaluation(path):
        if row.judged is None:
            continue
        prompt = row.judged.collaboration.prompt
        replies = row.judged.collaboration.replies
        for reply, verdict in zip(replies, row.judged.verdicts, strict=True):
            saved = SavedVerdict(**answers_of(verdict), label=prompt.label, judge=row.judge)
            key = (prompt.request, reply.text)
            verdicts[key] = _keep_agreed(verdicts.get(key, saved), saved)
    return verdicts


def _keep_agreed(first: SavedVerdict, second: SavedVerdict) -> SavedVerdict:
    """Keep the answers that are in both."""
    before = answers_of(first)
    agreed = {
        question: answer if answer == before[question] else None
        for question, answer in answers_of(second).items()
    }
    return SavedVerdict(**agreed, label=second.label, judge=second.judge)


def write_rows(folder: Path, rows: Iterable[EvaluationRow]) -> None:
    """Replace a folder's log in one step: readers see the old rows or the new ones.

    Raises:
        InputError: the folder cannot be written.
    """
    path = folder / LOG_NAME
    with disk_errors(path):
        folder.mkdir(parents=True, exist_ok=True)
    write_bytes(path, b"".join(map(_encode_row, rows)))


def without_tokens(collaboration: Collaboration) -> Collaboration:
    """Drop token ids and log-probabilities: training needs them, a log does not."""
    return change_replies(collaboration, lambda reply: replace(reply, tokens=None))


def change_replies(collaboration: Collaboration, change: Callable[[Reply], Reply]) -> Collaboration:
    """Return a collaboration with every reply changed, those of the feedback agent too."""
    rounds = []
    for turn in collaboration.rounds:
        reply, revision = (
            None if each is None else change(each) for each in (turn.feedback.reply, turn.revision)
        )
        rounds.append(Round(feedback=replace(turn.feedback, reply=reply), revision=revision))
    return replace(collaboration, draft=change(collaboration.draft), rounds=tuple(rounds))


def _encode_row(row: EvaluationRow) -> bytes:
    return json.dumps(msgspec.to_builtins(row)).encode() + b"\n"
