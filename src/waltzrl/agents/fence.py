"""Delimiters around untrusted text, which the text itself cannot close.

Models are lenient readers: `&lt;/reply&gt;`, full-width letters, or a Cyrillic look-alike with
invisible characters in between can close a block for a model as well as `</reply>` does. So the
text is also compared as such a reader sees it, and whatever resembles a delimiter is disarmed.
"""

import re
import unicodedata
from functools import lru_cache

HARMLESS = "\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}"
LONGEST_TEXT = 8_000
"""The most characters between two delimiters; the rest is cut."""

BRACKET = r"(?:<|&(?:amp;)*(?:lt|#0*60|#x0*3c);?|\\u003c|\\x3c|%3c)"
"""An opening angle bracket, plain or escaped as in HTML, JSON, Python and URLs."""
DELIMITER = re.compile(
    rf"{BRACKET}(?P<rest>[\s/\\]*(?:conversation|reply|feedback|policy))", re.IGNORECASE
)
ASCII = re.compile(r"[\t\n\r -~]*")
TEMPLATE = re.compile(
    r"<(?=[|\N{FULLWIDTH VERTICAL LINE}]|(?:start|end)_of_turn>|/?s>|</?sys>>)|\[(?=/?inst\])",
    re.IGNORECASE,
)
"""The beginning of a token that ends or opens a turn in a common chat template."""

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
"""Characters that resemble those of the delimiters, apart from those that NFKD already maps."""
PLAIN = {ord(other): plain for plain, others in LOOK_ALIKES.items() for other in others}
INVISIBLE = {"Cf", "Cc", "Cs", "Cn", "Co", "Mn", "Me", "Zs", "Zl", "Zp"}
"""Unicode categories of characters without a glyph of their own."""
BLANK = "\u115f\u1160\u2800"
"""Letters and symbols without a visible glyph."""


def fence(tag: str, text: str) -> str:
    """Put untrusted text between `<tag>` and `</tag>`.

    Whatever in the text resembles a delimiter or the end of a turn loses its bracket, and the
    text is cut at `LONGEST_TEXT` characters. So it can neither end its own block, nor open
    another one, nor displace the rest of the prompt.
    """
    return f"<{tag}>{_disarm_text(text[:LONGEST_TEXT])}</{tag}>"


def _disarm_text(text: str) -> str:
    # Plain ASCII, the common case, has no look-alikes and skips the search character by character.
    if not ASCII.fullmatch(text):
        plain, positions = _read_leniently(text)
        brackets = {
            positions[match.start()]
            for pattern in (DELIMITER, TEMPLATE)
            for match in pattern.finditer(plain)
        }
        text = "".join(
            HARMLESS if position in brackets else character
            for position, character in enumerate(text)
        )
    text = DELIMITER.sub(lambda match: HARMLESS + match["rest"], text)
    return TEMPLATE.sub(HARMLESS, text)


def _read_leniently(text: str) -> tuple[str, list[int]]:
    """Return the text as a lenient reader sees it, and each character's position in `text`."""
    plain = [_simplify_character(character) for character in text]
    return "".join(plain), [position for position, part in enumerate(plain) for _ in part]


@lru_cache(maxsize=4096)
def _simplify_character(character: str) -> str:
    """Return the plain characters that this one resembles; nothing if it is invisible."""
    parts = unicodedata.normalize("NFKD", character).casefold().translate(PLAIN)
    return "".join(
        part
        for part in parts
        # A space stays, although it has no glyph: the delimiters that are looked for may hold some.
        if part == " " or not (part in BLANK or unicodedata.category(part) in INVISIBLE)
    )
