"""What a revision changed, word by word."""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

WORDS = re.compile(r"\s*(?:\w+|[^\w\s])|\s+")
SENTENCES = re.compile(r"[^.!?\n]*[.!?\n]+\s*|[^.!?\n]+")
MOST_WORK = 40_000
"""Pairs of equal words that are compared at most: what a text costs that means to cost much. Longer
ones are compared by sentences, and when those are too many, not at all."""
MOST_PIECES = 5_000
"""Of each text: to look for what is equal takes time for each piece of what is left of it."""
ISLAND = 2
"""Words in common, fewer than this between two changes, are easier to read as changed."""


class Part(NamedTuple):
    """A piece of either text, or of both."""

    kind: Literal["same", "del", "ins"]
    text: str


def changes(before: str, after: str) -> list[Part]:
    """Return the parts of both texts in order; spaces between words do not count as changes."""
    for pattern in (WORDS, SENTENCES):
        old, new = pattern.findall(before), pattern.findall(after)
        if max(len(old), len(new)) <= MOST_PIECES and _work(old, new) <= MOST_WORK:
            return _joined(_compared(old, new))
    return _joined([Part("del", before), Part("ins", after)])


def _work(old: Sequence[str], new: Sequence[str]) -> int:
    there = Counter(word.strip() for word in new)
    return sum(there[word.strip()] for word in old)


def _compared(old: Sequence[str], new: Sequence[str]) -> list[Part]:
    gone, come = ([word.strip() for word in words] for words in (old, new))
    parts = []
    for kind, i, j, k, m in SequenceMatcher(None, gone, come, autojunk=False).get_opcodes():
        tears = i > 0 and j < len(old) and j - i < ISLAND
        if kind == "equal" and not tears:
            parts.append(Part("same", "".join(new[k:m])))
        else:
            parts += [Part("del", "".join(old[i:j])), Part("ins", "".join(new[k:m]))]
    return parts


def _joined(parts: Sequence[Part]) -> list[Part]:
    """Gather what is between two parts in common: first all that went, then all that came."""
    joined: list[Part] = []
    gone = come = ""
    for kind, text in [*parts, Part("same", "")]:
        if kind == "del":
            gone += text
        elif kind == "ins":
            come += text
        else:
            space, gone, come = _space_before(gone, come)
            between = (
                Part("same", space),
                Part("del", gone),
                Part("ins", come),
                Part("same", text),
            )
            joined += [part for part in between if part.text]
            gone = come = ""
    return joined


def _space_before(gone: str, come: str) -> tuple[str, str, str]:
    """Take the space before a change out of it: it is no change, and it would be coloured."""
    before, after = (text[: len(text) - len(text.lstrip())] for text in (gone, come))
    if gone and come and bool(before) != bool(after):
        return "", gone, come
    return after or before, gone.lstrip(), come.lstrip()
