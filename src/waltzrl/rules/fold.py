"""Folds letters that only look like letters of the alphabet, so that no spelling hides a word.

Characters are folded one by one, so a fold of a part is a part of the fold.
"""

import re
import unicodedata
from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate

import re2

BLOCK = 256
"""Characters that are folded at a time, so that places can be found again."""

_HIDDEN = (
    "\u00ad\u034f\u061c\u115f\u1160\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e007f\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f"
)
"""Characters without a width, and marks that are stacked on letters."""
_DRESSED = (
    "\u00aa\u00b2\u00b3\u00b9\u00ba\u00c0-\u024f\u0250-\u02ff\u0370-\u03ff\u0400-\u052f\u1d00-\u1dbf"
    "\u1e00-\u1eff\u2070-\u209f\u2100-\u214f\u2460-\u24ff\uff00-\uff5e\U0001d400-\U0001d7ff"
    "\U0001f100-\U0001f1ff"
)
"""Letters with accents, in circles, in other widths, and letters of neighbouring alphabets."""
_FOLDABLE = re2.compile(f"[{_HIDDEN}{_DRESSED}]")
_HIDDEN_RUN = re.compile(f"[{_HIDDEN}]+")
_LOOKALIKES = dict(
    zip(
        "\u0430\u0432\u0435\u0451\u0456\u0458\u043a\u043c\u043d\u043e\u0440\u0441\u0442\u0443\u0445"
        "\u0455\u0501\u051b\u051d\u04bb\u0410\u0412\u0415\u0406\u0408\u041a\u041c\u041d\u041e\u0420"
        "\u0421\u0422\u0423\u0425\u0405\u03b1\u03b2\u03b5\u03b7\u03b9\u03ba\u03bd\u03bf\u03c1\u03c4"
        "\u03c5\u03c7\u0391\u0392\u0395\u0396\u0397\u0399\u039a\u039c\u039d\u039f\u03a1\u03a4\u03a5"
        "\u03a7\u0251\u0261\u0131\u026a\u0262\u1d00\u0299\u1d04\u1d05\u1d07\u029c\u1d0a\u1d0b\u029f"
        "\u1d0d\u0274\u1d0f\u1d18\u0280\u1d1b\u1d1c\u1d20\u1d21\u028f\u1d22\u00f8\u00d8\u0142\u0111",
        "abeeijkmhopctyxsdqwhABEIJKMHOPCTYXSabeniknoptuxABEZHIKMNOPTYXagiIGabcdehjklmnoprtuvwyzoOld",
        strict=True,
    )
)


def foldable(text: str) -> bool:
    """Whether a fold could change letters of `text`."""
    return not text.isascii() and _FOLDABLE.search(text) is not None


def fold(text: str) -> str:
    """Drop hidden characters and marks, and put plain letters for dressed-up ones."""
    if text.isascii():
        return text
    bare = _HIDDEN_RUN.sub("", text)
    bare = _HIDDEN_RUN.sub("", unicodedata.normalize("NFKD", bare))
    for lookalike in _LOOKALIKES.keys() & set(bare):
        bare = bare.replace(lookalike, _LOOKALIKES[lookalike])
    return bare


_fold_one = lru_cache(maxsize=4096)(fold)


class Folded:
    """A folded text that knows where its characters come from."""

    def __init__(self, given: str) -> None:
        self._given = given
        blocks = [fold(given[place : place + BLOCK]) for place in range(0, len(given), BLOCK)]
        self.text = "".join(blocks)
        self._starts = [0, *accumulate(map(len, blocks))]
        self._places: dict[int, list[int]] = {}

    def origin(self, place: int) -> int:
        """Return where the character at `place` stands in the text as given."""
        block = bisect_right(self._starts, place) - 1
        if block not in self._places:
            part = self._given[block * BLOCK : (block + 1) * BLOCK]
            self._places[block] = [
                block * BLOCK + n for n, c in enumerate(part) for _letter in _fold_one(c)
            ] + [block * BLOCK + len(part)]
        places = self._places[block]
        return places[min(place - self._starts[block], len(places) - 1)]
