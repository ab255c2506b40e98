"""The pattern language of the packs: re2 with named word lists and bounded gaps.

<make> .. <bomb>        `make` and `bomb` are word lists, of the pack or shared
[ ]                     one space exactly
a space                 one to three characters that neither are part of a word nor end a sentence
a space and ?           the same, or nothing
` .. `, ` ... `         up to two, up to five words between, within one sentence
!                       before a word, or behind what ends before one, such as a list: the word is
                        rare, so texts are searched for it first
everything else         re2, without `*`, `+` and `{n,}`, so that every match is short
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

SPACE = r"[^\w.!?\n]{1,3}"
WORD = r"[\w'-]{1,15}"
_UNCOUNTED_GAP = r"[^\w.!?\n](?:[^.!?\n]*?[^\w.!?\n])?"
GAPS = {" .. ": 2, " ... ": 5}
"""The number of words that each kind of gap may contain."""

_LONG_RUN = re.compile(r"(\]|\\[wWsSd])\{([01]),\d{2,3}\}\??")
"""Part of a command that re2 would count character by character."""
_MARK = re.compile(r"(?:^|(?<=[\] }?>])|(?<=\\[bn.]))!")
_OUTER = re.compile(r"\\.|\[\^?\]?[^\]]*\]|.")
_PIECE = re.compile(r"[^\\\[()| \n]+|\\.|\[\^?\]?[^\]]*\]|.")
"""The same with what needs no look at each character in one piece, which is read faster."""
_GROUP = r"\(\?:[^()]*(?:\([^()]*\)[^()]*)*\)(?:\?|\{0,\d\})"
_OPTIONAL = re.compile(rf"^{_GROUP}|{_GROUP}$")
# What begins with any letter or sign is found in every text, and is of no use as a key.
_WILD = re.compile(r"^\W*$|^[^\w(<]|(?:^|[(|: ])\\[wWsSd]")
_NAME = re.compile(r"(?<!\?P)<(\w+)>")
_SPACING = re.compile(r" \.{2,3} | \??|\[\^?\]?[^\]]*\]")


@dataclass(frozen=True, kw_only=True)
class RulePattern:
    """One pattern, expanded when it is needed: most never are."""

    source: str
    """The pattern as written in the pack."""
    words: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Alternatives by name, each a piece of the same language without gaps."""
    whole_words: bool = True
    """True if a match begins and ends where a word does; commands may end in a sign."""

    @cached_property
    def regex(self) -> str:
        """For re2, ignoring case.

        Raises:
            ValueError: an unknown name, or a part without an upper bound.
        """
        regex = self._between_words(
            _expand_part(_MARK.sub("", self.source), self.words, _count_gap)
        )
        refuse_unbounded(regex)
        return regex

    @cached_property
    def loose(self) -> str:
        """Matches wherever `regex` does, with gaps of any length within a sentence.

        It is faster, because words need not be counted.
        """
        plain = _MARK.sub("", self.source)
        regex = self._between_words(_expand_part(plain, self.words, lambda _gap: _UNCOUNTED_GAP))
        return regex if self.whole_words else _LONG_RUN.sub(_uncount_run, regex)

    @cached_property
    def key(self) -> str:
        """A word without which `regex` cannot match, and which few texts contain."""
        key = _choose_key(self.source)
        if not self.whole_words:
            return f"(?:{_expand_part(_drop_optional_ends(key), self.words, _count_gap)})"
        return _expand_key(key, self.words)

    @property
    def has_literal_mark(self) -> bool:
        """Whether texts must contain the character !, because one marks no word."""
        return "!" in _OUTER.findall(self.regex)

    @property
    def longest(self) -> int:
        """Characters of the longest text that it can match."""
        return measure_longest_match(self.regex)

    def _between_words(self, regex: str) -> str:
        return rf"\b(?:{regex})\b" if self.whole_words else f"(?:{regex})"


def _uncount_run(run: re.Match[str]) -> str:
    return f"{run[1]}{'+' if run[2] == '1' else '*'}?"


def _expand_key(word: str, words: Mapping[str, str]) -> str:
    """Expand the key; if an optional ending was dropped, the key may match a longer word."""
    bare = _drop_optional_ends(word)
    ends = r"\b" if word.endswith(bare) else ""
    return rf"\b(?:{_expand_part(bare, words, _count_gap)}){ends}"


def _count_gap(gap: str) -> str:
    return f"{SPACE}(?:{WORD}{SPACE}){{0,{GAPS[gap]}}}"


def _choose_key(source: str) -> str:
    """Choose the word that texts are searched for: the marked one, or the last literal one."""
    words = _split_source(source)
    marked = [_MARK.split(word)[1] for word in words if _MARK.search(word)]
    literal = [
        word for word in words if (bare := _drop_optional_ends(word)) and not _WILD.search(bare)
    ]
    # Without such a word the whole pattern is its own key.
    return (marked or literal[-1:] or [source])[0]


def _split_source(source: str) -> list[str]:
    """Split at the spaces outside parentheses and classes; alternatives share no word."""
    words, depth = [""], 0
    for token in _PIECE.findall(source):
        depth += (token == "(") - (token == ")")
        if token == "|" and not depth:
            return []
        if token in {" ", "[ ]"} and not depth:
            words.append("")
        else:
            words[-1] += token
    return words


def _drop_optional_ends(word: str) -> str:
    """Drop the optional groups at both ends of `word`."""
    while (bare := _OPTIONAL.sub("", word)) != word:
        word = bare
    return word


def _expand_part(part: str, words: Mapping[str, str], gap: Callable[[str], str]) -> str:
    def word_list(name: re.Match[str]) -> str:
        if name[1] not in words:
            raise ValueError(f"there is no word list <{name[1]}>; add it under [words]")
        return f"(?:{_expand_part(words[name[1]], words, gap)})"

    def spacing(match: re.Match[str]) -> str:
        if match[0] in GAPS:
            return gap(match[0])
        return {" ": SPACE, " ?": f"(?:{SPACE})?"}.get(match[0], match[0])

    return _SPACING.sub(spacing, _NAME.sub(word_list, part))


_UNBOUNDED = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(?P<gap>.?[*+]|.?\{\d*,\})", re.DOTALL)
_TOKEN = re.compile(
    r"(?P<run>[^\\\[\](){}|?^$]{2,})(?![?{])|(?P<zero>\\[bB]|[\^$?])|(?P<open>\((?:\?:)?)"
    r"|(?P<close>\))|(?P<or>\|)|\{(?:\d+,)?(?P<times>\d+)\}"
    r"|(?P<one>\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|[^\\\[\](){}|?^$])"
)


def refuse_unbounded(regex: str) -> None:
    """Raise ValueError if a part of `regex` has no upper bound."""
    for match in _UNBOUNDED.finditer(regex):
        if match["gap"]:
            raise ValueError(
                f"{match['gap']!r} has no upper bound; use {{m,n}}, or a gap such as ' .. '"
            )


def measure_longest_match(regex: str) -> int:
    """Return the length in characters of the longest match of a bounded `regex`."""
    totals, widest, last = [0], [0], 0
    for token in _TOKEN.finditer(regex):
        match token.lastgroup:
            case "run" | "one":
                last = len(token[0]) if token.lastgroup == "run" else 1
                totals[-1] += last
            case "times":
                # `last` was counted once already, where it was read.
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
