"""Decides whether an upstream's bytes hold words that nobody reviewed, and may not be returned."""

import json
import re
from collections.abc import Sequence

from waltzrl.serving.exchange import TokenLogprob


def spells(tokens: Sequence[TokenLogprob] | None, text: str) -> bool:
    """Return whether the tokens, if any are known, spell `text` and nothing else.

    They may end with a token that has a special meaning.
    """
    if tokens is None:
        return True
    written = [t.token.encode() if t.bytes is None else bytes(t.bytes) for t in tokens]
    if tokens and SPECIAL_TOKEN.fullmatch(tokens[-1].token):
        written.pop()
    return b"".join(written) == text.encode() and all(map(_is_consistent, tokens))


SPECIAL_TOKEN = re.compile(r"<[\w|/]{1,32}>")
"""A token with a special meaning, such as `<|im_end|>`."""


def _is_consistent(token: TokenLogprob) -> bool:
    """Return whether the token's name says no more than its bytes."""
    if token.bytes is None:
        return True
    try:
        return bytes(token.bytes).decode() == token.token
    except UnicodeDecodeError:  # a part of a character; its name is an escape or a placeholder
        return len(token.token) <= len("\\xff") * len(token.bytes)


def repeats_a_key(answer: bytes) -> bool:
    """Return whether an object has a key twice: a client may read the value that we did not."""
    # Most replies have no key twice, in whichever objects, and none with an escape in its name.
    keys = KEY.findall(answer)
    if len(set(keys)) == len(keys) == len(KEY_END.findall(answer)):
        return False
    try:
        UNIQUE_KEYS.decode(answer.decode())
    except ValueError:
        return True
    return False


def _require_unique_keys(pairs: Sequence[tuple[str, object]]) -> None:
    if len(dict(pairs)) < len(pairs):
        raise ValueError


KEY = re.compile(rb'"([^"\\]{0,64}+)"[ \t\r\n]*+:')  # `+`: without going back, which is slow
KEY_END = re.compile(rb'"[ \t\r\n]*+:')
"""The end of every key, and perhaps of a quotation within a string."""
UNIQUE_KEYS = json.JSONDecoder(object_pairs_hook=_require_unique_keys)
