"""The log of an evaluation: one JSON line per collaboration, safe to cut off at any byte."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from waltzrl.errors import InputError
from waltzrl.records import Collaboration, JudgedCollaboration, Reply, Round, load

LOG_NAME = "rows.jsonl"

Key = tuple[str, str]
"""Pattern and prompt id: what a row is about."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """How one pattern fared on one prompt."""

    pattern: str
    prompt_id: str
    judge: str
    """Name of the judge that gave the verdicts."""
    agents: str = ""
    """Who played and how: `Contestant.agents`."""
    judged: JudgedCollaboration | None = None
    """None when a policy failed; `error` then says how. Failed rows enter no rate."""
    milliseconds: float = 0.0
    """Wall time of the collaboration, waiting in a batch included."""
    tokens: int | None = None
    """Tokens that all policies together wrote: draft, feedback, revisions."""
    error: str = ""

    @property
    def key(self) -> Key:
        return (self.pattern, self.prompt_id)


class RowLog:
    """Appends rows to a folder's log; every line is on its way to the disk before the next."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / LOG_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+")
            self._cut_torn_line()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def append(self, row: EvaluationRow) -> None:
        try:
            self._file.write(_encode(row))
            self._file.flush()
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _cut_torn_line(self) -> None:
        """A run that was killed while writing leaves half a line; its work is done again."""
        self._file.seek(0)
        whole = self._file.read().rfind(b"\n") + 1
        self._file.truncate(whole)


def read_rows(folder: Path) -> list[EvaluationRow]:
    """Read a folder's log; of several rows about one pattern and prompt the last one counts.

    A torn last line is left out. A folder without a log has no rows.

    Raises:
        InputError: the log cannot be read, or a line is not a row.
    """
    path = folder / LOG_NAME
    rows: dict[Key, EvaluationRow] = {}
    for number, line in enumerate(_whole_lines(path), start=1):
        try:
            # json, not msgspec.json: an agent may write a lone surrogate, and only json carries it.
            row = load(json.loads(line), EvaluationRow)
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


def write_rows(folder: Path, rows: Iterable[EvaluationRow]) -> None:
    """Replace a folder's log at one stroke: readers see the old rows or the new ones."""
    path = folder / LOG_NAME
    fresh = path.with_suffix(".new")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        fresh.write_bytes(b"".join(_encode(row) for row in rows))
        fresh.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from error


def without_tokens(collaboration: Collaboration) -> Collaboration:
    """Drop token ids and log-probabilities: training needs them, a log does not."""
    return replace(
        collaboration,
        draft=_bare(collaboration.draft),
        rounds=tuple(_bare_round(said) for said in collaboration.rounds),
    )


def _whole_lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().split(b"\n")[:-1]
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}; choose another folder") from error


def _bare(reply: Reply) -> Reply:
    return replace(reply, tokens=None)


def _bare_round(said: Round) -> Round:
    feedback = said.feedback
    if feedback.reply is not None:
        feedback = replace(feedback, reply=_bare(feedback.reply))
    return Round(
        feedback=feedback, revision=None if said.revision is None else _bare(said.revision)
    )


def _encode(row: EvaluationRow) -> bytes:
    return json.dumps(msgspec.to_builtins(row)).encode() + b"\n"


def _unwritable(path: Path, error: OSError) -> InputError:
    return InputError(
        f"cannot write {path}: {error.strerror or error}; free the disk or choose another folder"
    )
