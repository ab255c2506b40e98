"""Tells the language of a text by its script, its frequent function words and its letters.

The rules are English; whoever relies on what they did not find asks here first.
"""

import re
import tomllib
from collections import Counter
from functools import cache
from importlib.resources import files

LEAST = 2
"""Function words and letters that must speak for a language."""
MOST_READ = 20_000
"""Characters that are read, from the beginning."""
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
_LATIN_RUN = re.compile("[A-Za-z\u00c0-\u024f\u1e00-\u1eff]+")
_DENSE = ("ko", "zh")


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
    counts = Counter(_LATIN_RUN.findall(lowered))
    languages, letters = _load_signs()
    counts.update({letter: lowered.count(letter) for letter in letters.intersection(lowered)})
    votes = Counter(
        dict.fromkeys(_load_languages(), 0)
    )  # of equals the first is the most common one
    for sign in counts.keys() & languages.keys():
        for code in languages[sign]:
            votes[code] += counts[sign]
    code, most = votes.most_common(1)[0]
    signs = sum(code in languages[sign] for sign in counts.keys() & languages.keys())
    return code if most >= LEAST and signs >= distinct else ""


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
