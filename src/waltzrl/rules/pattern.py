"""The small language of the packs: a re2 pattern in which words have names and gaps are bounded.

<make> .. <bomb>        `make` and `bomb` are word lists of the pack
a space                 one to three characters that are neither a word nor end a sentence
` .. `, ` ... `         up to two, up to five words between, within one sentence
|                       alternatives, up to the next gap or parenthesis
everything else         re2, without `*`, `+` and `{n,}`, so that every match is short
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

SPACE = r"[^\w.!?\n]{1,3}"
WORD = r"[\w'-]{1,15}"
GAPS = {" .. ": 2, " ... ": 5}
"""Words that fit into each kind of gap."""

_NAME = re.compile(r"(?<!\?P)<(\w+)>")
_GAP = re.compile(r"( \.{2,3} )")
_SPACING = re.compile(r" \.{2,3} | |\[\^?\]?[^\]]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pattern:
    """One shape of words."""

    source: str
    """As the pack writes it."""
    regex: str
    """For re2, without regard to case."""
    key: str
    """A part of `regex` without gaps: no match without it, and few texts have it."""

    @property
    def longest(self) -> int:
        """Characters of the longest text that it can match."""
        return longest(self.regex)


def expand(source: str, words: Mapping[str, str], common: frozenset[str]) -> Pattern:
    """Write the names and gaps of `source` out.

    Args:
        source: in the language of this module.
        words: alternatives by name, each a piece of the same language without gaps.
        common: names of lists whose words occur in any text; a key is looked for elsewhere.

    Raises:
        ValueError: an unknown name, or a part that can match without bound.
    """
    parts = _outermost(source)
    regexes = [f"(?:{_written_out(part.removeprefix('!'), words)})" for part in parts]
    regex = rf"\b{''.join(regexes)}\b"
    key = rf"\b{regexes[_rarest(parts, common)]}\b"
    refuse_unbounded(regex)
    return Pattern(source=source, regex=regex, key=key)


def _rarest(parts: Sequence[str], common: frozenset[str]) -> int:
    pieces = range(len(parts) - 1, -1, -2)
    marked = (n for n in pieces if parts[n].startswith("!"))
    rare = (n for n in pieces if not common.intersection(_NAME.findall(parts[n])))
    return next(chain(marked, rare), len(parts) - 1)


def _outermost(source: str) -> list[str]:
    """Split into piece, gap, piece ...; a gap in parentheses belongs to its piece."""
    parts = [""]
    for part in _GAP.split(source):
        if part in GAPS and parts[-1].count("(") == parts[-1].count(")"):
            parts += [part, ""]
        else:
            parts[-1] += part
    return parts


def _written_out(part: str, words: Mapping[str, str]) -> str:
    def listed(name: re.Match[str]) -> str:
        if name[1] not in words:
            raise ValueError(f"there is no word list <{name[1]}>; add it under [words]")
        return f"(?:{_written_out(words[name[1]], words)})"

    def spaced(found: re.Match[str]) -> str:
        if found[0] in GAPS:
            return f"{SPACE}(?:{WORD}{SPACE}){{0,{GAPS[found[0]]}}}"
        return SPACE if found[0] == " " else found[0]

    return _SPACING.sub(spaced, _NAME.sub(listed, part))


_UNBOUNDED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<gap>.?[*+]|.?\{\d*,\})", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<run>[^\\\[\](){}|?^$]{2,})(?![?{])|(?P<zero>\\[bB]|[\^$?])|(?P<open>\((?:\?:)?)"
    r"|(?P<close>\))|(?P<or>\|)|\{(?:\d+,)?(?P<times>\d+)\}"
    r"|(?P<one>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}|?^$])"
)


def refuse_unbounded(regex: str) -> None:
    """Raise ValueError where `regex` can match without bound."""
    for found in _UNBOUNDED.finditer(regex):
        if found["gap"]:
            raise ValueError(
                f"{found['gap']!r} has no upper bound; say {{m,n}}, or a gap such as ' .. '"
            )


def longest(regex: str) -> int:
    """Count the characters of the longest match of `regex`, in which all is bounded."""
    totals, widest, last = [0], [0], 0
    for token in _TOKEN.finditer(regex):
        match token.lastgroup:
            case "run" | "one":
                last = len(token[0]) if token.lastgroup == "run" else 1
                totals[-1] += last
            case "times":
                totals[-1] += last * (int(token["times"]) - 1)
            case "open":
                totals.append(0)
                widest.append(0)
            case "or":
                widest[-1], totals[-1] = max(widest[-1], totals[-1]), 0
            case "close":
                last = max(widest.pop(), totals.pop())
                totals[-1] += last
    return max(widest[0], totals[0])
