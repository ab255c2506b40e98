"""A candidate is a set of text files: rule packs, wordings, thresholds, or a program."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from waltzrl.errors import InputError
from waltzrl.foundation.files import disk_errors

MOST_BYTES = 1 << 20
"""The most bytes of all files of a candidate together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateFiles:
    """The files of a candidate, whatever they are."""

    files: Mapping[str, str]
    """The text of each file, by its name without a folder."""

    def __post_init__(self) -> None:
        for name in self.files:
            if not name or PurePosixPath(name).name != name or name.startswith("."):
                raise InputError(
                    f"a candidate has a file {name!r}; names have no folder and no leading dot"
                )
        if (size := sum(len(text.encode()) for text in self.files.values())) > MOST_BYTES:
            raise InputError(f"a candidate has {size:,} bytes; at most {MOST_BYTES:,} are kept")

    @property
    def digest(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of names and texts."""
        contents = msgspec.json.encode(dict(self.files), order="sorted")
        return hashlib.sha256(contents).hexdigest()[:16]

    def write(self, folder: Path) -> None:
        """Write the files into a folder, which is created."""
        with disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for name, text in self.files.items():
                (folder / name).write_text(text, "utf-8")


def read_candidate(folder: Path, digest: str | None = None) -> CandidateFiles:
    """Read the files of a candidate.

    Args:
        folder: with nothing but its files; those that begin with a dot are left out.
        digest: that it must have; None for any.

    Raises:
        InputError: the folder is missing, or its files are no texts, too many bytes, or were
            changed.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file())
        named = {
            path.name: path.read_text("utf-8") for path in paths if not path.name.startswith(".")
        }
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{folder}: no candidate ({error}); give a folder of text files") from None
    candidate = CandidateFiles(files=named)
    if digest not in (None, candidate.digest):
        raise InputError(
            f"{folder} was changed: its digest is {candidate.digest}, and the pool has {digest}; "
            "restore it, or start another run"
        )
    return candidate
