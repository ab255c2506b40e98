"""Searches the bytes of files for sentences of an erased subject."""

import json
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from waltzrl.errors import InputError
from waltzrl.store.memory.items import Json
from waltzrl.store.memory.search import texts_in, words_of
from waltzrl.store.privacy.scanner import PersonalDataScanner

MOST_SENTENCES = 16
LONGEST_SENTENCE = 60
"""Characters; a longer sentence might be split over two pages of a database."""
FEWEST_WORDS = 4
"""Shorter sentences do not identify a person."""


def choose_sentences(records: Iterable[Json]) -> list[str]:
    """Choose sentences from records: the rarest first, then the longest."""
    counts = Counter(
        text[:LONGEST_SENTENCE].strip()
        for record in records
        for text in texts_in(record)
        if len(words_of(text[:LONGEST_SENTENCE]).split()) >= FEWEST_WORDS
    )
    return sorted(counts, key=lambda text: (counts[text], -len(text)))[:MOST_SENTENCES]


def find_quotes(words: str) -> list[str]:
    """Return what to look for in scrubbed texts: the words around personal data.

    Raises:
        InputError: there are too few words.
    """
    parts, position = [], 0
    for detection in PersonalDataScanner().find(words):
        parts.append(words_of(words[position : detection.start]))
        position = detection.end
    quotes = [part for part in (*parts, words_of(words[position:])) if part]
    if sum(len(quote.split()) for quote in quotes) < FEWEST_WORDS:
        raise InputError(
            f"got too few words to tell a person by: {words!r}; quote {FEWEST_WORDS} words in a "
            "row, or more, besides names and numbers"
        )
    return quotes


def has_quotes(record: Json, quotes: Sequence[str]) -> bool:
    """Return whether one text of a record has all the quotes."""
    texts = (f" {words_of(text)} " for text in texts_in(record))
    return any(all(f" {quote} " in text for quote in quotes) for text in texts)


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
    # mmap refuses an empty file.
    if not path.is_file() or not path.stat().st_size:
        return []
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return [
            quote
            for quote in quotes
            if any(content.find(form) >= 0 for form in _encode_forms(quote))
        ]


def _encode_forms(text: str) -> set[bytes]:
    """Return the text plain, in JSON with and without ASCII escapes, and as indexed words."""
    forms = (text, json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1])
    return {form.encode("utf-8", "surrogatepass") for form in (*forms, words_of(text))}


def _said_by(records: Iterable[Json], wanted: set[str]) -> set[str]:
    return {
        text
        for record in records
        for other in texts_in(record)
        for text in wanted
        if words_of(text) in words_of(other)
    }
