"""Contents that are made to be forgotten; the log of decisions is never touched.

A line is overwritten where it stands, by one that says that it was erased and is as long. So a
gateway may go on appending to the same file.
"""

import os
from collections.abc import Callable
from pathlib import Path

from waltzrl.audit.contents import ERASED, Content, files, read_contents


def erase_contents(folder: Path, digest: str) -> int:
    """Overwrite what was said by one subject; it is off the disk's files when this returns.

    Args:
        folder: of the log.
        digest: of the subject, under this log's digest key; never empty.

    Returns:
        How many decisions' contents were erased.

    Raises:
        InputError: a line is damaged, so that nobody knows whose it is.
        OSError: a file cannot be read or written.
    """
    assert digest, "who named no subject cannot be told from others who did not"
    return sum(_blank(path, lambda content: content.subject == digest) for path in files(folder))


def expire_contents(folder: Path, before: float) -> int:
    """Erase what was said before a time, and remove the files that hold nothing else.

    Args:
        folder: of the log.
        before: seconds since the epoch. A line without a time is from before.

    Returns:
        How many decisions' contents were erased.

    Raises:
        InputError: a line is damaged.
        OSError: a file cannot be read, written or removed.
    """
    erased = 0
    kept = files(folder)
    for path in kept:
        erased += _blank(path, lambda content: content.time < before)
        if path != kept[-1] and next(read_contents(path), None) is None:
            path.unlink()
    return erased


def contents_of(folder: Path, digest: str) -> list[Content]:
    """Return what was said by one subject.

    Raises:
        InputError: a line is damaged.
    """
    return [
        content
        for path in files(folder)
        for _, _, content in read_contents(path)
        if content.subject == digest
    ]


def _blank(path: Path, is_doomed: Callable[[Content], bool]) -> int:
    doomed = [(start, len(line)) for start, line, said in read_contents(path) if is_doomed(said)]
    if doomed:
        with path.open("r+b") as file:
            for start, length in doomed:
                file.seek(start)
                file.write(ERASED + b" " * (length - len(ERASED) - 2) + b"}\n")
            file.flush()
            os.fsync(file.fileno())
    return len(doomed)
