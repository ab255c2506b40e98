"""Replies in JSON whose boolean fields are labels: their format, and the labels' probabilities."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

LABEL_VALUES: Final = ("true", "false")
# Behind a backslash, a quotation mark is part of a text that quotes such a field.
BEFORE_VALUE = re.compile(r'(?<!\\)"(\w+)"\s*:\s*\Z')
"""The end of a text whose next word is the value of a field."""


@dataclass(frozen=True, slots=True)
class JsonField:
    """One field of an object."""

    name: str
    values: tuple[str, ...] = ()
    """JSON literals to choose from; empty for any string."""

    @property
    def is_label(self) -> bool:
        return self.values == LABEL_VALUES


@dataclass(frozen=True, slots=True)
class JsonFormat:
    """A JSON object with these fields in this order.

    Policies enforce it where they can: a server by `response_format`, one in this process by
    choosing among permitted tokens if the labels are the first fields.
    """

    fields: tuple[JsonField, ...]

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the boolean fields, whose probabilities a policy returns where it can."""
        return tuple(field.name for field in self.fields if field.is_label)

    def probabilities(
        self, tokens: Iterable[tuple[str, Sequence[tuple[str, float]]]]
    ) -> tuple[float, ...]:
        """Return the probability that each label is true; empty if one of them was not found.

        Args:
            tokens: of a reply: each token's text, and the candidates for its place with their
                probabilities.

        Returns:
            [labels] of the last value of each, renormalised over true and false.
        """
        by_label: dict[str, float] = {}
        text = ""
        for token, candidates in tokens:
            if read_label_value(token) is not None and (before := BEFORE_VALUE.search(text)):
                mass = {True: 0.0, False: 0.0}
                for candidate, probability in candidates:
                    if (meaning := read_label_value(candidate)) is not None:
                        mass[meaning] += probability
                if len(candidates) == 1:  # the server tells of the chosen token only
                    mass[not read_label_value(token)] = 1 - sum(mass.values())
                if total := sum(mass.values()):
                    by_label[before[1]] = mass[True] / total
            text += token
        return in_order(self.labels, by_label)

    @property
    def labels_first(self) -> bool:
        return self.fields[0].is_label

    @property
    def response_format(self) -> dict[str, object]:
        """The format as a field of a chat-completions request."""
        names = [field.name for field in self.fields]
        schema = {
            "type": "object",
            "properties": {field.name: _describe_field(field) for field in self.fields},
            "required": names,
            "additionalProperties": False,
        }
        named = {"name": "review", "strict": True, "schema": schema}
        return {"type": "json_schema", "json_schema": named}


def in_order(labels: Sequence[str], by_label: Mapping[str, float]) -> tuple[float, ...]:
    """Return a number for each label; empty if one has none."""
    return tuple([by_label[label] for label in labels]) if set(labels) <= set(by_label) else ()


def read_label_value(token: str) -> bool | None:
    """Return the label that a token begins; None if it begins neither true nor false."""
    word = token.strip().lower()
    for value in LABEL_VALUES:
        if word and (word.startswith(value) or value.startswith(word)):
            return value == "true"
    return None


def _describe_field(field: JsonField) -> dict[str, object]:
    if field.is_label:
        return {"type": "boolean"}
    if field.values:
        return {"type": "string", "enum": [msgspec.json.decode(value) for value in field.values]}
    return {"type": "string"}
