"""Evidence that one decision is in the log, for somebody who is not shown the others."""

from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path

from waltzrl.audit.merkle import inclusion_proof, leaf_hash
from waltzrl.audit.note import Checkpoint, NoteError, read_notes
from waltzrl.audit.reading import find, read_lines
from waltzrl.audit.verify import CHECKPOINTS
from waltzrl.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """An inclusion proof of RFC 6962, with all that is needed to check it."""

    line: str
    """The entry as it stands in the log; the leaf is SHA-256(0x00 || line)."""
    index: int
    hashes: tuple[str, ...]
    """Audit path in base64, lowest first."""
    checkpoint: str
    """The signed note whose root the path leads to."""


def prove(folder: Path, record_id: str) -> list[Proof]:
    """Return a proof for each decision of a request, against the newest checkpoint.

    Reads the whole log and keeps 32 bytes a record.

    Raises:
        InputError: the log has no such decision, or no checkpoint that covers it yet.
    """
    entries = find(folder, record_id)
    note, size = _newest(folder / CHECKPOINTS)
    lines = {entry.seq: b"" for entry in entries}
    leaves = []
    for seq, (_, line, _) in enumerate(read_lines(folder)):
        leaves.append(leaf_hash(line))
        if seq in lines:
            lines[seq] = line
    if len(leaves) < size or max(lines) >= size:
        raise InputError(
            f"{folder}: the newest checkpoint is of {size} records, need one that covers "
            f"{record_id!r}; wait for the next one"
        )
    return [
        Proof(
            line=line.decode(),
            index=seq,
            hashes=tuple(b64encode(h).decode() for h in inclusion_proof(leaves[:size], seq)),
            checkpoint=note,
        )
        for seq, line in lines.items()
    ]


def _newest(path: Path) -> tuple[str, int]:
    try:
        with path.open("rb") as file:
            *_, note = read_notes(file, path.stat().st_size)
        return note, Checkpoint.parse(note).size
    except (OSError, NoteError, ValueError) as error:
        raise InputError(f"{path}: no checkpoint that can be read ({error})") from None
