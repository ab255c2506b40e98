"""What was said, kept beside the log and never in it: one line per decision, which can be erased.

{"id": "req-1", "subject": "5d0c...", "time": 1760000000.0, "collaboration": {...}}
"""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waltzrl.audit.record import encode
from waltzrl.errors import InputError
from waltzrl.records import Collaboration, load

CONTENTS = "contents-{:06}.jsonl"
ERASED = b'{"erased":true'


class Content(msgspec.Struct, frozen=True, kw_only=True):
    """What was said about one decision, and whose it is."""

    id: str
    """Of the request."""
    subject: str = ""
    """Digest, that of the decision's record; empty when the client named none."""
    time: float = 0.0
    """Seconds since the epoch; 0 where an older version wrote none."""
    collaboration: Collaboration

    @property
    def line(self) -> bytes:
        return encode(self) + b"\n"


def files(folder: Path) -> list[Path]:
    """Return the files with contents, the newest last; only that one may still grow."""
    return sorted(folder.glob("contents-*.jsonl"))


def read_contents(path: Path) -> Iterator[tuple[int, bytes, Content]]:
    """Yield where a line begins, the line and what it says; pass over what was erased.

    A line that is still being written is left out.

    Raises:
        InputError: a line is damaged.
    """
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n") and not line.startswith(ERASED):
                yield start, line, _content(line, f"{path}:{number}")
            start += len(line)


def _content(line: bytes, where: str) -> Content:
    try:
        # json, not msgspec.json: an agent may write a lone surrogate, and only json carries it
        return load(json.loads(line), Content)
    except ValueError as error:
        raise InputError(f"{where}: not what was said ({error}); delete the line") from None
