"""Schemas of JSON objects, each compiled to the grammar that a reply has to follow."""

from typing import Literal

from waltzrl.errors import OPTIONAL_MODULES, InputError, MissingExtraError
from waltzrl.policies.chat_completion import Json

State = Literal["complete", "possible", "impossible"]


class JsonSchema:
    """A schema of JSON objects.

    A reply writes the properties in the schema's order, and then others if it may have any.
    """

    def __init__(self, schema: Json) -> None:
        """Compile the schema.

        Args:
            schema: in the vocabulary of JSON Schema; `{}` fits every object.

        Raises:
            InputError: it is malformed, or has a keyword that llguidance does not enforce.
            MissingExtraError: llguidance is not installed.
        """
        if not isinstance(schema, dict):
            raise InputError(f"the schema: got {type(schema).__name__}; need an object")
        types = schema.get("type", "object")
        if types != "object" and not (isinstance(types, list) and "object" in types):
            raise InputError(f"the schema's type: got {types!r}; need 'object'")
        try:
            from llguidance import LLMatcher
        except ModuleNotFoundError as missing:
            raise MissingExtraError(*OPTIONAL_MODULES["llguidance"]) from missing
        self.grammar = LLMatcher.grammar_from_json_schema(
            schema | {"type": "object"},
            overrides={
                "whitespace_pattern": " ?",  # of more, a model could write nothing else
                "json_allow_general_unicode_escapes": True,
                "coerce_one_of": True,  # what fits one of the schemas may fit others, too
            },
        )
        """The grammar, as llguidance writes it."""
        if problem := LLMatcher.validate_grammar(self.grammar):
            raise InputError(f"the schema cannot be enforced: {' '.join(problem.split())}")

    def state(self, text: str) -> State:
        """Return whether a text is an object that fits, can become one, or cannot."""
        from llguidance import LLMatcher, LLTokenizer

        matcher = LLMatcher(LLTokenizer("byte"), self.grammar, log_level=0)
        written = list(text.encode())
        if matcher.try_consume_tokens(written) < len(written):
            return "impossible"
        return "complete" if matcher.is_accepting() else "possible"
