"""The texts that take the place of a reply which stays unsafe or was not reviewed."""

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from waltzrl.agents.rules import Rulebook, language_of
from waltzrl.agents.rules_reviewer import CRISIS
from waltzrl.records import Feedback, Prompt

DEFAULT = "default"
"""The texts of every category without texts of its own."""
ENGLISH = "en"

TextsByLanguage = Mapping[str, str]


class RefusalTexts:
    """Chooses a refusal by the category of the feedback and the language of the request."""

    def __init__(
        self, rulebook: Rulebook, texts: Mapping[str, TextsByLanguage] | None = None
    ) -> None:
        """Combine texts with those of `refusals.toml`.

        Args:
            rulebook: finds a person in a crisis, whatever the feedback says.
            texts: category or `default` -> ISO 639-1 code -> text; they replace ours.
        """
        self._rulebook = rulebook
        ours, own = refusal_texts(), texts or {}
        self._texts = {
            category: {**ours.get(category, {}), **own.get(category, {})}
            for category in {*ours, *own}
        }

    def choose(self, prompt: Prompt, feedback: Feedback) -> str:
        """Return the text in the request's language or, where there is none, in English.

        A category's English text goes before the default in another language: that of self_harm
        says where help is, also where nobody reviewed the reply or the feedback names no category.
        """
        language = language_of(prompt.request) or ENGLISH
        category = CRISIS if self._in_crisis(prompt) else feedback.category
        by_category = self._texts.get(category, self._texts[DEFAULT])
        return (
            by_category.get(language) or by_category.get(ENGLISH) or self._texts[DEFAULT][ENGLISH]
        )

    def _in_crisis(self, prompt: Prompt) -> bool:
        return any(
            finding.category == CRISIS
            for turn in prompt.messages
            if turn.role == "user"
            for finding in self._rulebook.request(turn.content)
        )


@cache
def refusal_texts() -> dict[str, dict[str, str]]:
    """Return the texts of `refusals.toml`: category or `default` -> ISO 639-1 code -> text."""
    table = tomllib.loads((files("waltzrl.agents") / "refusals.toml").read_text("utf-8"))
    return {
        category: {language: text.strip() for language, text in texts.items()}
        for category, texts in table.items()
    }
