"""Replies and labels that somebody saved as JSON Lines, in the form of `waltzrl judge`'s files."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waltzrl.data.jsonl import read_objects
from waltzrl.errors import InputError
from waltzrl.judges import RecordedJudge
from waltzrl.policies import SavedPolicy
from waltzrl.records import Verdict

NEEDED = 'need {"prompt": "...", "response": "...", optional "unsafe", "refuses", "overrefuses"}'


class _Saved(msgspec.Struct, kw_only=True):
    """What a line may hold; other fields are left alone."""

    prompt: str
    response: str
    unsafe: bool | None = None
    refuses: bool | None = None
    overrefuses: bool | None = None


def saved_policy(path: Path) -> SavedPolicy:
    """Read the replies that a policy is to repeat.

    Raises:
        InputError: a line cannot be read, or a prompt has two different replies.
    """
    replies: dict[str, str] = {}
    for where, saved in _read(path):
        if replies.setdefault(saved.prompt, saved.response) != saved.response:
            raise InputError(f"{where}: the prompt had another reply above; keep one, or two files")
    return SavedPolicy(replies)


def saved_judge(path: Path) -> RecordedJudge:
    """Read labels of saved replies; a missing label, or null, is unscored.

    Raises:
        InputError: a line cannot be read, or a reply has two different labels.
    """
    lines = list(_read(path))
    name = f"saved:{path.stem}@{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    verdicts: dict[tuple[str, str], Verdict] = {}
    for where, saved in lines:
        verdict = Verdict(
            judge=name, unsafe=saved.unsafe, refuses=saved.refuses, overrefuses=saved.overrefuses
        )
        if verdicts.setdefault((saved.prompt, saved.response), verdict) != verdict:
            raise InputError(f"{where}: the reply had other labels above; keep one line of it")
    return RecordedJudge(name, verdicts)


def _read(path: Path) -> Iterator[tuple[str, _Saved]]:
    for number, found in read_objects(path):
        where = f"{path}:{number}"
        try:
            yield where, msgspec.convert(found, _Saved)
        except msgspec.ValidationError as error:
            raise InputError(f"{where}: {error}; {NEEDED}") from None
