"""Writes what a chat has no place for as text: search results, references, calls of a server.

Agents keep such blocks in their history for good, so a request with one must not be refused. The
text names the block and has all its words, so that the model and the reviewers read the same.
"""

from collections.abc import Iterator, Mapping

import msgspec

from waltzrl.gateway.exchange import Json
from waltzrl.gateway.wire.prompt import ENCODED, SHORT

SILENT = ("cache_control", "citations", "encrypted_content", "encrypted_index", "type")
"""Keys of a block that say nothing to a model."""
BARE = ("content", "context", "data", "output", "text")
"""Keys that are not written before their text."""


def block_text(block: Mapping[str, Json]) -> str:
    """Return a block as text: its type in brackets, and below it all its words.

    Example:
        [search_result]
        source: https://docs.example/limits
        title: Limits
        The limit is 5.
    """
    # Not refused, as `as_text` does, because agents keep the block in their history.
    return "\n".join(_yield_block_lines(block)).replace("\0", "")


def _yield_block_lines(block: Mapping[str, Json]) -> Iterator[str]:
    kind = block.get("type")
    if isinstance(kind, str) and kind != "text":
        yield f"[{kind}]"
    for key, value in block.items():
        is_encoded = kind == "base64" and key == "data"
        if key not in SILENT and not is_encoded:
            yield from _yield_value_lines(key, value)


def _yield_value_lines(key: str, value: Json) -> Iterator[str]:
    if isinstance(value, dict):
        yield from _yield_block_lines(value)
    elif isinstance(value, list):
        for item in value:
            yield from _yield_value_lines(key, item)
    elif isinstance(value, str):
        if value and not (len(value) > SHORT and ENCODED.fullmatch(value)):
            yield value if key in BARE else f"{key}: {value}"
    elif value is not None:
        yield f"{key}: {msgspec.json.encode(value).decode()}"
