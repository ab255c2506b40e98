"""What a revision changed, word by word."""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

WORDS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")
SENTENCES = re.compile(r"[^.!?\n]*[.!?\n]+\s*|[^.!?\n]+")
MAX_PAIRS = 40_000
"""Limit on pairs of equal words, which an adversarial text can make expensive. Texts beyond it are
compared by sentences, and if those are too many, not at all."""
MAX_PIECES = 5_000
"""Limit on the words or sentences of each text."""
MIN_COMMON = 2
"""Fewer common words than this between two changes are easier to read as changed."""


class Part(NamedTuple):
    """A piece of either text, or of both."""

    kind: Literal["same", "del", "ins"]
    text: str


def find_changes(before: str, after: str) -> list[Part]:
    """Return the parts of both texts in order; spaces between words do not count as changes."""
    for pattern in (WORDS, SENTENCES):
        old, new = pattern.findall(before), pattern.findall(after)
        if max(len(old), len(new)) <= MAX_PIECES and _equal_pairs(old, new) <= MAX_PAIRS:
            return _merge_changes(_compare_texts(old, new))
    return _merge_changes([Part("del", before), Part("ins", after)])


def _equal_pairs(old: Sequence[str], new: Sequence[str]) -> int:
    counts = Counter(word.strip() for word in new)
    return sum(counts[word.strip()] for word in old)


def _compare_texts(old: Sequence[str], new: Sequence[str]) -> list[Part]:
    before, after = ([word.strip() for word in words] for words in (old, new))
    parts = []
    # By default difflib ignores the frequent words of a text of 200 words or more.
    for kind, i, j, k, m in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        is_island = i > 0 and j < len(old) and j - i < MIN_COMMON
        if kind == "equal" and not is_island:
            parts.append(Part("same", "".join(new[k:m])))
        else:
            parts += [Part("del", "".join(old[i:j])), Part("ins", "".join(new[k:m]))]
    return parts


def _merge_changes(parts: Sequence[Part]) -> list[Part]:
    """Merge the changes between two common parts: first all deletions, then all insertions."""
    joined: list[Part] = []
    deleted = inserted = ""
    for kind, text in [*parts, Part("same", "")]:
        if kind == "del":
            deleted += text
        elif kind == "ins":
            inserted += text
        else:
            space, deleted, inserted = _space_before(deleted, inserted)
            between = (
                Part("same", space),
                Part("del", deleted),
                Part("ins", inserted),
                Part("same", text),
            )
            joined += [part for part in between if part.text]
            deleted = inserted = ""
    return joined


def _space_before(deleted: str, inserted: str) -> tuple[str, str, str]:
    """Split off the space before a change, which would be coloured as changed."""
    before, after = (text[: len(text) - len(text.lstrip())] for text in (deleted, inserted))
    if deleted and inserted and bool(before) != bool(after):
        return "", deleted, inserted
    return after or before, deleted.lstrip(), inserted.lstrip()
