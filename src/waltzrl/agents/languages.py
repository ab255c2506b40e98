"""What happens to requests in a language that the reviewer does not read."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final, Literal

from waltzrl.agents.rules import language_of
from waltzrl.collaboration import Reviewer
from waltzrl.records import OTHER_LANGUAGE, Feedback, Prompt, Reply

ENGLISH: Final = "en"
OnOtherLanguage = Literal["serve", "refuse"]
LEAST_SIGNS = 2
"""Words or letters of a language that must differ, for a text to be in it."""
LEAST_LETTERS = 8
"""Letters of an unknown script that make a text one of another language."""
MOST_READ = 2000
"""Characters of a turn that are read, from the beginning."""
SENTENCES = 6
"""Sentences that are read one by one, of the beginning and of the end of a turn."""
TURNS_KEPT = 512
"""Turns whose language is remembered."""
UNDETERMINED: Final = "und"
"""The code of ISO 639-2 for a language that is not known."""

_SENTENCE_END = re.compile(r"[.!?\n\u3002\uff01\uff1f]+")
_LATIN = re.compile(r"[A-Za-z\u00aa\u00ba\u00c0-\u024f\u1e00-\u1eff]")


def find_other_language(prompt: Prompt, languages: Sequence[str]) -> str:
    """Return the code of the first language of a user's turn that is none of these; "" if all are.

    Each turn is read as a whole, and its first and last sentences one by one.
    A short text, or one in a language that nobody here tells, is in none.

    Args:
        prompt: whose turns of users are read.
        languages: ISO 639-1 codes; none are all.
    """
    if not languages:
        return ""
    known = tuple(languages)
    for turn in prompt.messages:
        if turn.role == "user" and (found := _find_in_text(turn.content[:MOST_READ], known)):
            return found
    return ""


@lru_cache(maxsize=TURNS_KEPT)  # a conversation's turns come again with each request
def _find_in_text(text: str, known: tuple[str, ...]) -> str:
    sentences = [part for part in _SENTENCE_END.split(text) if len(part) >= LEAST_LETTERS]
    if len(sentences) > 2 * SENTENCES:
        sentences = [*sentences[:SENTENCES], *sentences[-SENTENCES:]]
    for part in (text, *(sentences if len(sentences) > 1 else ())):
        language = language_of(part, distinct=LEAST_SIGNS) or _find_other_script(part)
        if language and language not in known:
            return language
    return ""


def _find_other_script(text: str) -> str:
    """Return `UNDETERMINED` if most letters are of a script that `language_of` does not know."""
    if text.isascii():
        return ""
    letters = [letter for letter in text if letter.isalpha()]
    others = sum(not _LATIN.match(letter) for letter in letters)
    return UNDETERMINED if others >= LEAST_LETTERS and 2 * others > len(letters) else ""


class LanguageReviewer:
    """A reviewer that says when a request is in a language that it does not read.

    Its feedback then names the language in `failure`. It stands, whatever it is worth; or, if the
    operator so chose, nobody is asked and it is not well-formed, so that the reply is refused.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        languages: Sequence[str],
        on_other: OnOtherLanguage = "serve",
        on_found: Callable[[str], None] | None = None,
    ) -> None:
        """Wrap a reviewer.

        Args:
            reviewer: reviews.
            languages: those that it reads, as ISO 639-1 codes.
            on_other: what follows for a request in another.
            on_found: called with the language of each review of such a request.
        """
        self.reviewer = reviewer
        self._languages, self._on_other, self._on_found = languages, on_other, on_found

    async def review(self, prompt: Prompt, reply: Reply) -> Feedback:
        language = find_other_language(prompt, self._languages)
        if not language:
            return await self.reviewer.review(prompt, reply)
        if self._on_found is not None:
            self._on_found(language)
        failure = f"{OTHER_LANGUAGE}: {language}"
        reasoning = f"the reviewer is {failure}"
        if self._on_other == "refuse":
            return Feedback(
                unsafe=False,
                overrefuse=False,
                well_formed=False,
                reasoning=reasoning,
                failure=failure,
            )
        feedback = await self.reviewer.review(prompt, reply)
        return replace(
            feedback,
            failure=feedback.failure or failure,
            reasoning=feedback.reasoning or reasoning,
        )
