"""Questions with their solutions, which a teacher explains to a student."""

from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.jsonl import read_objects
from waltzrl.records import Message, Prompt

OPENING, CLOSING = "<think>\n", "\n</think>\n\n"
"""The marks around what a reasoning model writes before it replies, as most servers read them."""


class SolvedQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """A row: the columns of RLT's data sets. Columns of other names are ignored."""

    question: str
    solution: str
    reasoning_trace: str = ""
    """An explanation that somebody wrote; empty where there is none."""

    @property
    def reply(self) -> str:
        """The reply of an agent that thinks first: the explanation in its marks, the solution."""
        return f"{OPENING}{self.reasoning_trace}{CLOSING}{self.solution}"


def read_solutions(path: Path) -> dict[str, SolvedQuestion]:
    """Read one solved question per line; return them by `file:line`, in order.

    Raises:
        InputError: the file is missing or empty, or a line lacks a column or has a blank one.
    """
    rows = {}
    for number, fields in read_objects(path):
        where = f"{path}:{number}"
        try:
            row = msgspec.convert(fields, SolvedQuestion)
        except msgspec.ValidationError as error:
            raise InputError(
                f"{where}: {error}; every row needs question and solution, as texts, and may have"
                " reasoning_trace"
            ) from None
        for column in ("question", "solution"):
            if not getattr(row, column).strip():
                raise InputError(f"{where}: {column} is blank; fill it in or delete the row")
        rows[where] = row
    if not rows:
        raise InputError(f"{path} holds no solved questions; give one JSON object per line")
    return rows


def questions_of(rows: dict[str, SolvedQuestion]) -> list[Prompt]:
    """Return the questions as prompts, each with the id `file:line`."""
    return [
        Prompt(id=where, messages=(Message(role="user", content=row.question),))
        for where, row in rows.items()
    ]
