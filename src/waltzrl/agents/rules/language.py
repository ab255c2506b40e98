"""Tells the language of a text by its script, its frequent function words and its letters.

The rules are English; whoever relies on what they did not find asks here first.
"""

import re
import tomllib
from functools import cache, lru_cache
from importlib.resources import files

LEAST = 2
"""Function words and letters that must speak for a language."""
MOST_READ = 20_000
"""Characters that are read, from the beginning."""
LEAST_SIGNS = 2
"""Words or letters of a language that must differ, for a text to be in it."""
LEAST_LETTERS = 8
"""Letters of an unknown script that make a text one of another language."""
TURN_READ = 2000
"""Characters of a turn to be read, from the beginning."""
SENTENCES = 6
"""Sentences that are read one by one, of the beginning and of the end of a turn."""
TURNS_KEPT = 2048
"""Turns whose language is remembered."""
ENGLISH = "en"
UNDETERMINED = "und"
"""The code of ISO 639-2 for a language that is not known."""
_HAN_WEIGHT = 3
"""Latin letters that one Chinese character or Korean syllable counts for."""

_SCRIPTS = {
    "ru": "\u0400-\u052f",
    "el": "\u0370-\u03ff",
    "ar": "\u0600-\u06ff\u0750-\u077f\ufb50-\ufdff\ufe70-\ufeff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "th": "\u0e00-\u0e7f",
    "ko": "\u1100-\u11ff\u3130-\u318f\uac00-\ud7af",
    "ja": "\u3040-\u30ff",
    "zh": "\u3400-\u4dbf\u4e00-\u9fff",
}
"""Characters of each script, by the language that it stands for."""
_SCRIPT_RUNS = {code: re.compile(f"[{letters}]+") for code, letters in _SCRIPTS.items()}
_LATIN_LETTERS = "A-Za-z\u00c0-\u024f\u1e00-\u1eff"
_LATIN_RUN = re.compile(f"[{_LATIN_LETTERS}]+")
_WORD = re.compile(f"[0-9@${_LATIN_LETTERS}]+")
"""With digits, so that h0w has no part that is a word, as its w is in Polish."""
_DENSE = ("ko", "zh")
_SENTENCE_END = re.compile(r"[.!?\n\u3002\uff01\uff1f]+")
_LATIN = re.compile(r"[A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff]")


def language_of(text: str, *, distinct: int = 1) -> str:
    """Return the ISO 639-1 code of the language that most of `text` is written in.

    Args:
        text: its beginning is read.
        distinct: function words and letters that must differ, where the script does not tell.

    Returns:
        The code of one of about twenty languages; "" if the text is too short to tell, or in none
        of them. A tie between English and another language is English.
    """
    text = text[:MOST_READ]
    if not text.isascii() and (other := _find_script_language(text)):
        return other
    lowered = text.lower()
    languages, letters = _load_signs()
    signs = [word for word in _WORD.findall(lowered) if word in languages]
    if not text.isascii():  # all these letters have accents
        signs += [letter for letter in lowered if letter in letters]
    votes: dict[str, int] = {}
    for sign in signs:
        for code in languages[sign]:
            votes[code] = votes.get(code, 0) + 1
    most = max(votes.values(), default=0)
    if most < LEAST:
        return ""
    # English stands first in the file, so a tie is English.
    code = next(code for code in _load_languages() if votes.get(code) == most)
    return code if sum(code in languages[sign] for sign in set(signs)) >= distinct else ""


@lru_cache(maxsize=TURNS_KEPT)  # a conversation's turns come again with each request
def find_other_language(text: str, known: tuple[str, ...]) -> str:
    """Return the code of the first language of a text that is none of the known ones.

    The text is read as a whole, and its first and last sentences one by one.

    Args:
        text: of a turn, its first `TURN_READ` characters.
        known: ISO 639-1 codes.

    Returns:
        "" where all that can be told is known: a few words, or a language in Latin letters that
        `language_of` does not know, are in none.
    """
    if ENGLISH in known and not _has_other_sign(text):  # as most texts in English
        return ""
    sentences = [part for part in _SENTENCE_END.split(text) if len(part) >= LEAST_LETTERS]
    if len(sentences) > 2 * SENTENCES:
        sentences = [*sentences[:SENTENCES], *sentences[-SENTENCES:]]
    for part in (text, *(sentences if len(sentences) > 1 else ())):
        if ENGLISH in known and not _has_other_sign(part):
            continue
        language = language_of(part, distinct=LEAST_SIGNS) or _find_other_script(part)
        if language and language not in known:
            return language
    return ""


def _has_other_sign(text: str) -> bool:
    """Return whether anything in a text speaks for another language than English.

    Without a sign that is not English too, English has as many votes as any other language.
    """
    return not text.isascii() or not _load_other_signs().isdisjoint(_WORD.findall(text.lower()))


def _find_other_script(text: str) -> str:
    """Return `UNDETERMINED` if most letters are of a script that `language_of` does not know."""
    if text.isascii():
        return ""
    letters = [letter for letter in text if letter.isalpha()]
    others = sum(not _LATIN.match(letter) for letter in letters)
    return UNDETERMINED if others >= LEAST_LETTERS and 2 * others > len(letters) else ""


@cache
def _load_languages() -> dict[str, dict[str, str]]:
    return tomllib.loads((files("waltzrl.agents.rules") / "languages.toml").read_text("utf-8"))


@cache
def _load_signs() -> tuple[dict[str, list[str]], frozenset[str]]:
    """Return the languages that each word or letter speaks for, and the letters."""
    languages = _load_languages()
    speaks_for: dict[str, list[str]] = {}
    for code, signs in languages.items():
        for sign in (*signs["words"].split(), *signs["letters"]):
            speaks_for.setdefault(sign, []).append(code)
    return speaks_for, frozenset("".join(signs["letters"] for signs in languages.values()))


@cache
def _load_other_signs() -> frozenset[str]:
    """Return the words that speak for other languages and not for English."""
    languages, _letters = _load_signs()
    return frozenset(sign for sign, codes in languages.items() if ENGLISH not in codes)


def _find_script_language(text: str) -> str:
    """Return the language of the script that outweighs the Latin letters; "" without one."""
    lengths = {code: _count_letters(run, text) for code, run in _SCRIPT_RUNS.items()}
    for code in _DENSE:
        lengths[code] *= _HAN_WEIGHT
    if lengths["ja"]:  # kana stand between Chinese characters
        lengths["ja"] += lengths["zh"]
    code = max(lengths, key=lambda code: lengths[code])
    if lengths[code] < max(LEAST, _count_letters(_LATIN_RUN, text)):
        return ""
    if code == "ru" and re.search("[\u0404\u0406\u0407\u0454\u0456\u0457\u0490\u0491]", text):
        return "uk"
    if code == "ar" and re.search("[\u067e\u0686\u0698\u06af]", text):
        return "fa"
    return code


def _count_letters(run: re.Pattern[str], text: str) -> int:
    return sum(map(len, run.findall(text)))
