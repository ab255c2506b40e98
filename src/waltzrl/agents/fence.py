"""Delimiters that the text between them cannot close."""

import re
import unicodedata
from functools import lru_cache

HARMLESS = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}"
LONGEST_TEXT = 8_000
"""Characters that fit between two delimiters."""

BRACKET = r"(?:<|&(?:amp;)*(?:lt|#0*60|#x0*3c);?|\\u003c|\\x3c|%3c)"
"""An opening angle bracket, also as HTML, JSON, Python and URLs spell it."""
DELIMITER = re.compile(
    rf"{BRACKET}(?P<rest>[\s/\\]*(?:conversation|reply|feedback))", re.IGNORECASE
)
SIMPLE = re.compile(r"[\t\n\r -~]*")
TEMPLATE = re.compile(
    r"<(?=[|\N{FULLWIDTH VERTICAL LINE}]|(?:start|end)_of_turn>|/?s>|</?sys>>)|\[(?=/?inst\])",
    re.IGNORECASE,
)
"""The beginning of what ends or opens a turn in the chat templates of common models."""

LOOK_ALIKES = {
    "<": "\u02c2\u1438\u16b2\u2039\u2329\u276e\u2770\u27e8\u29fc\u3008\u300a\u300c\U0001d236",
    "/": "\u2044\u2215\u2571\u27cb\u29f8\u3033\u30ce",
    "a": "\u0251\u03b1\u0430",
    "b": "\u044c\u0432",
    "c": "\u03f2\u0441\u1d04",
    "d": "\u0501",
    "e": "\u0435\u04bd\u212e\u1d07",
    "f": "\u0192",
    "i": "\u0131\u0269\u03b9\u0456\u04cf",
    "k": "\u03ba\u043a\u1d0b",
    "l": "\u01c0\u029f\u04c0\u217c\u2223",
    "n": "\u03b7\u043f\u0578\u057c\u0274",
    "o": "\u03bf\u03c3\u043e\u0585\u05e1\u1d0f",
    "p": "\u03c1\u0440\u1d18",
    "r": "\u0433\u1d26\u0280",
    "s": "\u0455\ua731",
    "t": "\u03c4\u0442\u1d1b",
    "v": "\u03bd\u0475\u1d20",
    "y": "\u03b3\u0443\u04af\u028f",
}
"""What can pass for the characters of our delimiters, beside what Unicode itself calls the same."""
PLAIN = {ord(other): one for one, others in LOOK_ALIKES.items() for other in others}
INVISIBLE = {"Cf", "Cc", "Cs", "Cn", "Co", "Mn", "Me", "Zs", "Zl", "Zp"}
"""Categories of characters that leave no mark of their own."""
BLANK = "\u115f\u1160\u2800"
"""Letters and signs that leave none either."""


def fence(tag: str, text: str) -> str:
    """Put untrusted text between `<tag>` and `</tag>`.

    Whatever in the text looks like a delimiter of ours, or like the end of a turn, loses its
    bracket, and the text is cut at `LONGEST_TEXT` characters, so that it can neither end its own
    block, nor open another one, nor crowd out the rest.
    """
    return f"<{tag}>{_disarmed(text[:LONGEST_TEXT])}</{tag}>"


def _disarmed(text: str) -> str:
    if not SIMPLE.fullmatch(text):
        seen, places = _as_seen(text)
        starts = {
            places[found.start()]
            for pattern in (DELIMITER, TEMPLATE)
            for found in pattern.finditer(seen)
        }
        text = "".join(HARMLESS if at in starts else one for at, one in enumerate(text))
    return TEMPLATE.sub(HARMLESS, DELIMITER.sub(_without_bracket, text))


def _without_bracket(found: re.Match[str]) -> str:
    return HARMLESS + found["rest"]


def _as_seen(text: str) -> tuple[str, list[int]]:
    """Spell the text as a lenient reader sees it, and say where each character stood."""
    spelt = [_plain(one) for one in text]
    return "".join(spelt), [place for place, parts in enumerate(spelt) for _ in parts]


@lru_cache(maxsize=4096)
def _plain(one: str) -> str:
    """Return the plain character that passes for the same, or nothing for an invisible one."""
    parts = unicodedata.normalize("NFKD", one).casefold().translate(PLAIN)
    return "".join(
        part
        for part in parts
        if part == " " or not (part in BLANK or unicodedata.category(part) in INVISIBLE)
    )
