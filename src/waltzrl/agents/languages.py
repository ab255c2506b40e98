"""Which language a request is in, as far as a reviewer must know: its own, or another."""

import re
import tomllib
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Final, Literal

from waltzrl.collaboration import Reviewer
from waltzrl.records import Feedback, Prompt, Reply

ENGLISH: Final = "en"
OTHER_LANGUAGE: Final = "not for this language"
"""How `Feedback.failure` begins where the reviewer does not read the request's language."""
OnOtherLanguage = Literal["serve", "refuse"]
LONGEST = 2000
"""Characters of a request that are looked at."""
FEWEST_LETTERS, FEWEST_WORDS = 12, 3
"""Shorter texts are in no language that could be told."""
FEWEST_IDEOGRAPHS = 3
SCRIPTS: Mapping[str, str] = {
    "CYRILLIC": "Cyrl",
    "CJK": "Hani",
    "HIRAGANA": "Jpan",
    "KATAKANA": "Jpan",
    "HANGUL": "Kore",
    "ARABIC": "Arab",
    "DEVANAGARI": "Deva",
    "BENGALI": "Beng",
    "TAMIL": "Taml",
    "TELUGU": "Telu",
    "GREEK": "Grek",
    "HEBREW": "Hebr",
    "THAI": "Thai",
    "GEORGIAN": "Geor",
    "ARMENIAN": "Armn",
}
"""How the Unicode names of a script's letters begin, and its code in ISO 15924."""
IDEOGRAPHIC = {"Hani", "Jpan", "Kore"}
OTHER_LATIN: Final = "Latn"
"""A language in Latin letters that has no list of words here."""

_WORD = re.compile(r"[^\W\d_]+")


def find_language(text: str) -> str | None:
    """Return the language of a text.

    Returns:
        The ISO 639 code of a language in Latin letters, or the ISO 15924 code of another script:
        `de`, `Cyrl`; `Latn` for a language in Latin letters that is none of those known here.
        None where the text is too short to tell.
    """
    text = text[:LONGEST]
    if text.isascii() and len(text) < FEWEST_LETTERS:
        return None
    script = None if text.isascii() else _find_script(text)
    if script is not None:
        return script
    words = _WORD.findall(text.lower())
    if len(words) < FEWEST_WORDS or sum(map(len, words)) < FEWEST_LETTERS:
        return None
    hits = {name: sum(word in known for word in words) for name, known in _read_words().items()}
    english = hits.pop(ENGLISH)
    best = max(hits, key=lambda name: hits[name])
    if hits[best] >= 2 and hits[best] > 2 * english and 4 * hits[best] >= len(words):
        return best
    if english:
        return ENGLISH
    if all(map(str.isascii, words)):
        return None
    return best if hits[best] else OTHER_LATIN if len(words) > 2 * FEWEST_WORDS else None


class LanguageReviewer:
    """A reviewer that says when a request is in a language that it does not read.

    Its feedback then names the language in `failure`. It stands, whatever it is worth; or, if the
    operator so chose, it is marked as not well-formed, so that the reply is refused.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        languages: Sequence[str],
        on_other: OnOtherLanguage = "serve",
        on_found: Callable[[str], None] | None = None,
    ) -> None:
        """Wrap a reviewer.

        Args:
            reviewer: reviews.
            languages: those that it reads, as `find_language` calls them.
            on_other: what follows for a request in another.
            on_found: called with the language of each such request.
        """
        self.reviewer = reviewer
        self._languages, self._on_other, self._on_found = languages, on_other, on_found

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        feedback = await self.reviewer.review(prompt, reply)
        language = find_language(prompt.request)
        if language is None or language in self._languages:
            return feedback
        if self._on_found is not None:
            self._on_found(language)
        failure = f"{OTHER_LANGUAGE}: {language}"
        if feedback.unsafe or not feedback.well_formed or self._on_other == "serve":
            return replace(feedback, failure=feedback.failure or failure)
        return replace(
            feedback, overrefuse=False, doubtful=False, text="", well_formed=False, failure=failure
        )


def _find_script(text: str) -> str | None:
    """Return the script of most letters; None for Latin, and for too few letters."""
    scripts = Counter(_script_of(letter) for letter in text if letter.isalpha())
    if not scripts:
        return None
    if "Jpan" in scripts:  # Japanese is mostly written in the characters of Chinese
        scripts["Jpan"] += scripts.pop("Hani", 0)
    [(script, count)] = scripts.most_common(1)
    fewest = FEWEST_IDEOGRAPHS if script in IDEOGRAPHIC else FEWEST_LETTERS
    return None if script == OTHER_LATIN or count < fewest else script


@cache
def _script_of(letter: str) -> str:
    name = unicodedata.name(letter, "").partition(" ")[0]
    return SCRIPTS.get(name, OTHER_LATIN)


@cache
def _read_words() -> Mapping[str, frozenset[str]]:
    text = (files("waltzrl.agents") / "languages.toml").read_text("utf-8")
    return {name: frozenset(words) for name, words in tomllib.loads(text).items()}
