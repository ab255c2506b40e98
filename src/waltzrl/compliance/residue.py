"""Searches the bytes of files for sentences of an erased subject."""

import json
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from waltzrl.memory.items import Json
from waltzrl.memory.words import texts_in, words_of

MOST_SENTENCES = 16
LONGEST_SENTENCE = 60
"""Characters; a longer sentence might be split over two pages of a database."""
FEWEST_WORDS = 4
"""Shorter sentences do not identify a person."""


def sentences(records: Iterable[Json]) -> list[str]:
    """Choose sentences from records: the rarest first, then the longest."""
    counts = Counter(
        text[:LONGEST_SENTENCE].strip()
        for record in records
        for text in texts_in(record)
        if len(words_of(text[:LONGEST_SENTENCE]).split()) >= FEWEST_WORDS
    )
    return sorted(counts, key=lambda text: (counts[text], -len(text)))[:MOST_SENTENCES]


def residual_text(
    files: Sequence[Path], quotes: Sequence[str], others: Callable[[], Iterator[Json]]
) -> list[str]:
    """Return the files whose bytes contain a sentence that only the subject said.

    Args:
        files: missing ones are skipped.
        quotes: sentences of the subject.
        others: yields the records of everybody else; called only if a sentence was found.
    """
    hits = [(path, quote) for path in files for quote in _in_bytes(path, quotes)]
    if not hits:
        return []
    shared = _said_by(others(), {quote for _path, quote in hits})
    return sorted(
        {
            f"{path}: words of the subject in its bytes"
            for path, quote in hits
            if quote not in shared
        }
    )


def _in_bytes(path: Path, quotes: Sequence[str]) -> list[str]:
    if not path.is_file() or not path.stat().st_size:
        return []
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return [quote for quote in quotes if any(content.find(form) >= 0 for form in _forms(quote))]


def _forms(text: str) -> set[bytes]:
    """Return the text plain, in JSON with and without ASCII escapes, and as indexed words."""
    forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    return {form.encode("utf-8", "surrogatepass") for form in (*forms, words_of(text))}


def _said_by(records: Iterable[Json], wanted: set[str]) -> set[str]:
    return {
        text
        for record in records
        for said in texts_in(record)
        for text in wanted
        if words_of(text) in words_of(said)
    }
