"""What was said, as it was kept beside the log: collaborations to judge, count and learn from."""

from collections.abc import Iterator
from pathlib import Path

from waltzrl.audit.contents import files, read_contents
from waltzrl.errors import InputError
from waltzrl.records import Collaboration


def read_collaborations(folder: Path) -> Iterator[tuple[str, Collaboration]]:
    """Yield the id of each decision and what was said, in the order of the log.

    What was erased, and a line that is still being written, is left out.

    Raises:
        InputError: there are no contents, or a line is damaged.
    """
    kept = files(folder)
    if not kept:
        raise InputError(
            f"{folder} holds no contents: none were kept, or all have expired; "
            "the log must be kept with contents = true"
        )
    for path in kept:
        for _, _, content in read_contents(path):
            yield content.id, content.collaboration
