"""The small language of the packs: a re2 pattern in which words have names and gaps are bounded.

<make> .. <bomb>        `make` and `bomb` are word lists, of the pack or shared
a space                 one to three characters that are neither a word nor end a sentence
` .. `, ` ... `         up to two, up to five words between, within one sentence
!                       before a word: it is rare, so texts are searched for it first
everything else         re2, without `*`, `+` and `{n,}`, so that every match is short
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

SPACE = r"[^\w.!?\n]{1,3}"
WORD = r"[\w'-]{1,15}"
GAPS = {" .. ": 2, " ... ": 5}
"""Words that fit into each kind of gap."""

_OUTER = re.compile(r"\\.|\[\^?\]?[^\]]*\]|.")
_GROUP = r"\(\?:[^()]*(?:\([^()]*\)[^()]*)*\)(?:\?|\{0,\d\})"
_OPTIONAL = re.compile(rf"^{_GROUP}|{_GROUP}$")
_WILD = re.compile(r"^\W*$|^[^\w(<]|(?:^|[(|: ])\\[wWsSd]")
_NAME = re.compile(r"(?<!\?P)<(\w+)>")
_SPACING = re.compile(r" \.{2,3} | |\[\^?\]?[^\]]*\]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RulePattern:
    """One shape of words."""

    source: str
    """As the pack writes it."""
    regex: str
    """For re2, without regard to case."""
    loose: str
    """Matches wherever `regex` does, with gaps as long as a sentence: they need not be counted,
    so it is faster."""
    key: str
    """A word of `regex`: no match without it, and few texts have it."""

    @property
    def longest(self) -> int:
        """Characters of the longest text that it can match."""
        return longest(self.regex)


def expand(source: str, words: Mapping[str, str]) -> RulePattern:
    """Write the names and gaps of `source` out.

    Args:
        source: in the language of this module.
        words: alternatives by name, each a piece of the same language without gaps.

    Raises:
        ValueError: an unknown name, or a part that can match without bound.
    """
    plain = source.replace(" !", " ").removeprefix("!")
    regex = rf"\b(?:{_written_out(plain, words, _counted)})\b"
    refuse_unbounded(regex)
    return RulePattern(
        source=source,
        regex=regex,
        loose=rf"\b(?:{_written_out(plain, words, _uncounted)})\b",
        key=_search_for(_key(source), words),
    )


def _search_for(word: str, words: Mapping[str, str]) -> str:
    """Write the key out; where an ending that it may have was dropped, the word goes on."""
    bare = _needed(word)
    ends = r"\b" if word.endswith(bare) else ""
    return rf"\b(?:{_written_out(bare, words, _counted)}){ends}"


def _counted(gap: str) -> str:
    return f"{SPACE}(?:{WORD}{SPACE}){{0,{GAPS[gap]}}}"


def _uncounted(_gap: str) -> str:
    return r"[^\w.!?\n](?:[^.!?\n]*?[^\w.!?\n])?"


def _key(source: str) -> str:
    """Choose the word of `source` that texts are searched for: the marked one, or the last."""
    words = _words(source)
    marked = [word[1:] for word in words if word.startswith("!")]
    literal = [word for word in words if (bare := _needed(word)) and not _WILD.search(bare)]
    return (marked or literal[-1:] or [source])[0]


def _words(source: str) -> list[str]:
    """Split at the spaces outside parentheses and classes; alternatives have no word in common."""
    words, depth = [""], 0
    for token in _OUTER.findall(source):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            return []
        if token == " " and not depth:
            words.append("")
        else:
            words[-1] += token
    return words


def _needed(word: str) -> str:
    """Drop the optional groups at both ends of `word`."""
    while (bare := _OPTIONAL.sub("", word)) != word:
        word = bare
    return word


def _written_out(part: str, words: Mapping[str, str], gap: Callable[[str], str]) -> str:
    def listed(name: re.Match[str]) -> str:
        if name[1] not in words:
            raise ValueError(f"there is no word list <{name[1]}>; add it under [words]")
        return f"(?:{_written_out(words[name[1]], words, gap)})"

    def spaced(found: re.Match[str]) -> str:
        if found[0] in GAPS:
            return gap(found[0])
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
