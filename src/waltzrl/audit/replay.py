"""What was said, as it was kept beside the log: collaborations to judge, count and learn from."""

import json
from collections.abc import Iterator
from pathlib import Path

import msgspec

from waltzrl.errors import InputError
from waltzrl.records import Collaboration


class _Content(msgspec.Struct):
    id: str
    collaboration: Collaboration


def read_collaborations(folder: Path) -> Iterator[tuple[str, Collaboration]]:
    """Yield the id of each decision and what was said, in the order of the log.

    A line that is still being written is left out.

    Raises:
        InputError: no contents were kept, or a line is damaged.
    """
    files = sorted(folder.glob("contents-*.jsonl"))
    if not files:
        raise InputError(f"{folder} holds no contents; the log must be kept with contents = true")
    for path in files:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    yield _content(line, f"{path}:{number}")


def _content(line: bytes, where: str) -> tuple[str, Collaboration]:
    try:
        # json, not msgspec.json: an agent may write a lone surrogate, and only json carries it
        content = msgspec.convert(json.loads(line), _Content)
    except ValueError as error:
        raise InputError(f"{where}: not what was said ({error}); delete the line") from None
    return content.id, content.collaboration
