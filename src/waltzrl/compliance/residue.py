"""What an erasure left behind: a subject's own sentences, looked for in the bytes of files."""

import json
import mmap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from waltzrl.memory.items import Json
from waltzrl.memory.search import texts_in, words_of

MOST_SENTENCES = 16
LONGEST_SENTENCE = 60
"""Characters; a longer one might lie across two pages of a database."""
FEWEST_WORDS = 4
"""Fewer say nothing about who said them."""


def sentences(records: Iterable[Json]) -> list[str]:
    """Pick what was said from records: what was said least often, then the longest."""
    said = Counter(
        text[:LONGEST_SENTENCE].strip()
        for record in records
        for text in texts_in(record)
        if len(words_of(text[:LONGEST_SENTENCE]).split()) >= FEWEST_WORDS
    )
    return sorted(said, key=lambda text: (said[text], -len(text)))[:MOST_SENTENCES]


def residual_text(
    files: Sequence[Path], said: Sequence[str], others: Callable[[], Iterator[Json]]
) -> list[str]:
    """Name the files in whose bytes one of the sentences stands that nobody else said.

    Args:
        files: those that are not there are passed over.
        said: sentences of the subject.
        others: gives every record that may stay; read only when a sentence was found.
    """
    found = [(path, text) for path in files for text in _in_bytes(path, said)]
    if not found:
        return []
    theirs = _said_by(others(), {text for _, text in found})
    return sorted(
        {f"{path}: words of the subject in its bytes" for path, text in found if text not in theirs}
    )


def _in_bytes(path: Path, said: Sequence[str]) -> list[str]:
    if not path.is_file() or not path.stat().st_size:
        return []
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
    ):
        return [text for text in said if any(content.find(s) >= 0 for s in _spellings(text))]


def _spellings(text: str) -> set[bytes]:
    """As text, in JSON of both kinds, and as the words that a search finds it by."""
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
