"""Replies whose labels are words at known places: how to read them, and their probabilities."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from waltzrl.policies.json_format import in_order

VALUES = {0: False, 1: True, 2: None, None: None}
"""The groups of words -> the value of the label."""
SPACES = " \t\r\n\u0120\u010a\u2581*\"'"
"""White space, as text and as vocabularies spell it, and what may surround a word."""


@dataclass(frozen=True, kw_only=True)
class WordLabel:
    """A label whose value is one of some words."""

    name: str
    true: tuple[str, ...]
    false: tuple[str, ...]
    undecided: tuple[str, ...] = ()
    """The words that say neither."""
    before: str = r"\A\s*"
    """A regular expression for what stands directly before the word."""
    after: str = r"\b"
    """A regular expression for what stands directly after it."""

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        # The longest go first, because an alternation takes the first that matches.
        words = sorted((*self.true, *self.false, *self.undecided), key=len, reverse=True)
        return re.compile(
            f"(?:{self.before})({'|'.join(map(re.escape, words))})(?:{self.after})", re.IGNORECASE
        )

    @cached_property
    def _place(self) -> re.Pattern[str]:
        return re.compile(rf"(?:{self.before})\Z", re.IGNORECASE)

    def words(self, text: str) -> set[str]:
        """Return the words, in small letters, that stand where the label's word must."""
        return {match[1].lower() for match in self._pattern.finditer(text)}

    def is_next(self, text: str) -> bool:
        """Return whether the label's word comes next after the beginning of a reply."""
        return self._place.search(text) is not None

    def group(self, token: str) -> int | None:
        """Return which words a token begins: 0 those for false, 1 for true, 2 the others.

        None if it begins none of them, or words of several groups.
        """
        start = token.strip(SPACES).lower()
        groups = [
            number
            for number, words in enumerate((self.false, self.true, self.undecided))
            if start and any(_can_begin(start, word.lower()) for word in words)
        ]
        return groups[0] if len(groups) == 1 else None


@dataclass(frozen=True)
class WordFormat:
    """Labels that a reply in words holds."""

    words: tuple[WordLabel, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.words)

    def read(self, text: str) -> dict[str, bool | None]:
        """Read a reply.

        Returns:
            The value of each label that the reply holds once, None where its word is undecided; a
            label that is missing, or contradicts itself, is not a key.
        """
        values: dict[str, bool | None] = {}
        for label in self.words:
            if len(words := label.words(text)) == 1:
                values[label.name] = VALUES[label.group(*words)]
        return values

    def probabilities(
        self, tokens: Iterable[tuple[str, Sequence[tuple[str, float]]]]
    ) -> tuple[float, ...]:
        """Return the probability that each label is true; empty if one of them was not found.

        Args:
            tokens: of a reply: each token's text, and the candidates for its place with their
                probabilities.

        Returns:
            [labels] renormalised over the words of the label.
        """
        by_label: dict[str, float] = {}
        text = ""
        for token, candidates in tokens:
            for label in self.words:
                if label.is_next(text):
                    mass = [0.0, 0.0, 0.0]
                    for candidate, probability in candidates:
                        if (group := label.group(candidate)) is not None:
                            mass[group] += probability
                    if sum(mass):
                        by_label[label.name] = mass[1] / sum(mass)
            text += token
        return in_order(self.labels, by_label)


def _can_begin(start: str, word: str) -> bool:
    """Whether a token can be the beginning of a word, or is the word and punctuation."""
    return word.startswith(start) or (start.startswith(word) and not start[len(word)].isalnum())
