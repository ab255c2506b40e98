"""Reads the files that W&B writes offline: a log in LevelDB's format, of messages of its own."""

import struct

BLOCK = 1 << 15
START = 7
"""Bytes of the file's header, and of that of each chunk in a block."""
WHOLE, LAST = 1, 4
"""The kinds of chunks that end a message."""


def read_records(path):
    """Yield every record of a .wandb file."""
    from wandb.proto.wandb_internal_pb2 import Record  # slow to import

    content, place, parts = path.read_bytes(), START, []
    while place + START <= len(content):
        if BLOCK - place % BLOCK < START:  # the rest of a block is padding
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", content, place)
        parts.append(content[place + START : place + START + length])
        place += START + length
        if kind in {WHOLE, LAST}:
            yield Record.FromString(b"".join(parts))
            parts = []
