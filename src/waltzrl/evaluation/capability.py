"""Whether a reply contains the expected answer: words, a number, or a multiple-choice letter."""

import re
import unicodedata
from decimal import Decimal

NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\d)")
WORD = re.compile(r"[^\W_]+")
STATED = re.compile(r"(?:answer(?:\s+is)?\s*[:=]?|####)", re.IGNORECASE)
CHOICE = re.compile(r"(?<!\w)([A-HJ]|I(?!['\u2019]|\s+[a-z]|,\s))(?!\w)")
"""A choice; no "I" that says something, as in "I think"."""
OPENING_CHOICE = re.compile(r"\s*\W*([A-J])(?:\W*$|[).:*\]]|\s*\n)")


def gives_answer(answer: str, text: str) -> bool:
    """Whether `text` gives `answer`, by the rule that suits the answer.

    A single capital letter A-J: the first choice after the last "answer" or "####", else the letter
    that opens the reply, else the only letter that stands alone. A number: the first number after
    the last "answer" or "####", else the last number of the reply; separators and trailing zeros do
    not matter. Words: they occur in the reply in a row, whatever their case and punctuation.
    """
    wanted = answer.strip()
    if re.fullmatch(r"[A-J]", wanted):
        return _find_choice(text) == wanted
    if NUMBER.fullmatch(wanted):
        numbers = _after_answer(text) or _find_numbers(text)
        return bool(numbers) and numbers[-1] == _find_numbers(wanted)[0]
    words = _join_words(wanted)
    return bool(words.strip()) and words in _join_words(text)


def _after_answer(text: str) -> list[Decimal]:
    stated = list(STATED.finditer(text))
    return _find_numbers(text[stated[-1].end() :])[:1] if stated else []


def _find_choice(text: str) -> str | None:
    stated = list(STATED.finditer(text))
    after = CHOICE.search(text, stated[-1].end()) if stated else None
    if after or (after := OPENING_CHOICE.match(text)):
        return after[1]
    alone = set(CHOICE.findall(text)) - {"I"}  # "I" is a pronoun; "A" may be an article
    return alone.pop() if len(alone) == 1 and alone != {"A"} else None


def _find_numbers(text: str) -> list[Decimal]:
    # Digits of other widths and the typographic minus sign make numbers, too.
    numbers = NUMBER.findall(unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-"))
    return [Decimal(number.replace(",", "")) for number in numbers]


def _join_words(text: str) -> str:
    """Lower-case words with one space around each, so that `in` finds whole words only."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    return " " + " ".join(WORD.findall(plain)) + " "
