"""Answers of judges' models on disk, by the hash of what was asked: the same is not asked twice."""

import os
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.files import disk_errors
from waltzrl.records import JudgeAnswer

MOST_ANSWERS = 500_000
"""Answers that are kept, about 150 MB; the oldest make room for new ones."""
TIMEOUT_SECONDS = 30.0
"""The longest wait for another process that writes."""


class AnswerCache:
    """Answers by key in a file that several processes may use at once.

    It holds keys, which are hashes, and answers that could be read, a few words each: nothing of
    what was asked.
    """

    def __init__(self, path: Path, most: int = MOST_ANSWERS) -> None:
        """Open or create the file, readable by its owner only.

        Args:
            path: of the file.
            most: answers that are kept.

        Raises:
            InputError: the folder cannot be written to, or the file is something else.
        """
        self.path, self._most = path, most
        try:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    _create_cache(path)
            self._file = _open_cache(path)
            # A crash may lose the last answers, which are asked again, but never damages the file.
            self._file.execute("PRAGMA synchronous = NORMAL")
            self._file.execute(
                "CREATE TABLE IF NOT EXISTS answers"
                " (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE, answer TEXT)"
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def get(self, key: str) -> JudgeAnswer | None:
        """Return the answer that was kept under a key; None if there is none, or it is damaged.

        Raises:
            InputError: the file cannot be read.
        """
        try:
            row = self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            raise self._unusable(error) from error
        if row is not None:
            with suppress(msgspec.DecodeError):
                return msgspec.json.decode(row[0], type=JudgeAnswer)
        return None

    def put(self, key: str, answer: JudgeAnswer) -> None:
        """Keep an answer, in the place of an earlier one, and forget the oldest beyond the limit.

        Raises:
            InputError: the file cannot be written.
        """
        text = msgspec.json.encode(answer).decode()
        try:
            self._file.execute(
                "INSERT OR REPLACE INTO answers (key, answer) VALUES (?, ?)", (key, text)
            )
            # AUTOINCREMENT gives no id twice, so that ids are in the order of writing.
            self._file.execute(
                "DELETE FROM answers WHERE id <= (SELECT max(id) FROM answers) - ?", (self._most,)
            )
        except sqlite3.Error as error:
            raise self._unusable(error) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def _unusable(self, error: sqlite3.Error) -> InputError:
        return InputError(
            f"cannot use the judges' answers in {self.path}: {error}; delete the file, or name "
            "another or `off` by WALTZRL_JUDGE_CACHE"
        )


def _open_cache(path: Path) -> sqlite3.Connection:
    # Without transactions of several statements, no process keeps the file locked for long.
    return sqlite3.connect(path, timeout=TIMEOUT_SECONDS, isolation_level=None)


def _create_cache(path: Path) -> None:
    """Put an empty file with a write-ahead log in place, unless another process was first.

    Two processes cannot give one file its log at once: SQLite does not wait for that lock.
    """
    with TemporaryDirectory(dir=path.parent) as folder:
        empty = Path(folder) / path.name
        os.close(os.open(empty, os.O_CREAT | os.O_RDWR, 0o600))
        with closing(_open_cache(empty)) as file:
            file.execute("PRAGMA journal_mode = WAL")
        with suppress(FileExistsError):
            path.hardlink_to(empty)
