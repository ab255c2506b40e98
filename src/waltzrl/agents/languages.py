"""What happens to requests in a language that the reviewer does not read."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, Literal

from waltzrl.agents.rules import language_of
from waltzrl.collaboration import Reviewer
from waltzrl.records import OTHER_LANGUAGE, Feedback, Prompt, Reply

ENGLISH: Final = "en"
OnOtherLanguage = Literal["serve", "refuse"]
LEAST_SIGNS = 2
"""Words or letters of a language that must differ, for a request to be in it."""


def find_other_language(prompt: Prompt, languages: Sequence[str]) -> str:
    """Return the code of the request's language if it is known and none of these; else "".

    Args:
        prompt: whose last turn is read.
        languages: ISO 639-1 codes; none are all.
    """
    language = language_of(prompt.request, distinct=LEAST_SIGNS) if languages else ""
    return "" if language in languages else language


class LanguageReviewer:
    """A reviewer that says when a request is in a language that it does not read.

    Its feedback then names the language in `failure`. It stands, whatever it is worth; or, if the
    operator so chose, it is marked as not well-formed, so that the reply is refused.
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
        feedback = await self.reviewer.review(prompt, reply)
        language = find_other_language(prompt, self._languages)
        if not language:
            return feedback
        if self._on_found is not None:
            self._on_found(language)
        failure = f"{OTHER_LANGUAGE}: {language}"
        if feedback.unsafe or not feedback.well_formed or self._on_other == "serve":
            return replace(feedback, failure=feedback.failure or failure)
        return replace(
            feedback, overrefuse=False, doubtful=False, text="", well_formed=False, failure=failure
        )
