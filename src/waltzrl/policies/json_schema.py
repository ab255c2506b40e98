"""Tells whether a growing text can still become a JSON object that fits a schema."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from waltzrl.errors import InputError
from waltzrl.policies.chat_completion import Json

State = Literal["complete", "possible", "impossible"]
KEYWORDS = frozenset(
    (
        "$defs",
        "$ref",
        "additionalProperties",
        "anyOf",
        "const",
        "enum",
        "items",
        "oneOf",
        "properties",
        "required",
        "type",
    )
)
"""The keywords that are enforced. Those of `NOTES` constrain nothing, and any other is refused."""
NOTES = frozenset(("$id", "$schema", "default", "description", "examples", "title"))
MOST_REFERENCES = 20
"""The most references and choices that may be followed without reading a character."""
SPACE = re.compile(" ?")
"""The white space between two tokens of JSON; less than JSON permits, so that a model cannot write
only space.
"""
STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
BEGUN_ESCAPE = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?")
INTEGER = re.compile(r"-?(?:0|[1-9]\d{0,18})")
NUMBER = re.compile(r"-?(?:0|[1-9]\d{0,18})(?:\.\d{1,24})?(?:[eE][+-]?\d{1,3})?")
BEGUN_NUMBER = re.compile(r"-?(?:(?:0|[1-9]\d{0,18})(?:\.|(?:\.\d{1,24})?[eE][+-]?)?)?")
KINDS = {'"': "string", "{": "object", "[": "array", "t": "boolean", "f": "boolean", "n": "null"}
"""The first character of a value -> its type; any other begins a number."""


class JsonSchema:
    """A schema of JSON objects."""

    def __init__(self, schema: Json) -> None:
        """Check the schema.

        Args:
            schema: in the vocabulary of JSON Schema; `{}` fits every object.

        Raises:
            InputError: it has a keyword that is not enforced, or is malformed.
        """
        self._root = _require_object(schema, "the schema")
        for part in _walk_schemas(self._root):
            unknown = part.keys() - KEYWORDS - NOTES
            if unknown:
                raise InputError(
                    f"the schema's keyword {min(unknown)!r} cannot be enforced; remove it"
                )
            if "$ref" in part:
                self._referred(part["$ref"])

    def state(self, text: str) -> State:
        """Return whether `text` is an object that fits, can become one, or cannot."""
        try:
            end = self._value(text, _skip_space(text, 0), self._root, ("object",))
        except _EndOfTextError:
            return "possible"
        except (_MismatchError, RecursionError):
            return "impossible"
        return "complete" if not text[end:].strip() else "impossible"

    def _value(
        self, text: str, start: int, schema: Json, kinds: Sequence[str] = (), depth: int = 0
    ) -> int:
        """Read a value, and return where it ends."""
        if schema is False or depth > MOST_REFERENCES:
            raise _MismatchError
        rules = schema if isinstance(schema, dict) else {}
        if "$ref" in rules:
            return self._value(text, start, self._referred(rules["$ref"]), kinds, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            if keyword in rules:
                return self._any(
                    text, start, _require_list(rules[keyword], keyword), kinds, depth + 1
                )
        if "const" in rules or "enum" in rules:
            values = _require_list(rules["enum"], "enum") if "enum" in rules else [rules["const"]]
            return _skip_literal(text, start, [json.dumps(v, ensure_ascii=False) for v in values])
        if start == len(text):
            raise _EndOfTextError
        types = rules.get("type", [])
        permitted = kinds or ([types] if isinstance(types, str) else _require_list(types, "type"))
        return self._typed(text, start, rules, permitted)

    def _typed(
        self, text: str, start: int, rules: Mapping[str, Json], permitted: Sequence[Json]
    ) -> int:
        kind = KINDS.get(text[start], "number")
        # A number can only be meant as an integer where no other is permitted.
        if kind == "number" and permitted and "number" not in permitted:
            kind = "integer"
        if permitted and kind not in permitted:
            raise _MismatchError
        if kind == "object":
            return self._members(text, start + 1, rules)
        if kind == "array":
            return self._items(text, start + 1, rules.get("items", True))
        if kind == "string":
            return _skip_string(text, start)
        if kind in ("boolean", "null"):
            return _skip_literal(text, start, ["true", "false"] if kind == "boolean" else ["null"])
        return _skip_number(text, start, INTEGER if kind == "integer" else NUMBER)

    def _any(
        self, text: str, start: int, schemas: Sequence[Json], kinds: Sequence[str], depth: int
    ) -> int:
        """Read a value that fits one of the schemas."""
        ends: list[int] = []
        cut = False
        for schema in schemas:
            try:
                ends.append(self._value(text, start, schema, kinds, depth))
            except _EndOfTextError:
                cut = True
            except _MismatchError:
                continue
        if ends:
            return max(ends)
        # A longer text may still fit the schema in which this one was cut.
        raise _EndOfTextError if cut else _MismatchError

    def _members(self, text: str, start: int, rules: Mapping[str, Json]) -> int:
        """Read the members of an object, after its opening brace."""
        properties = _require_object(rules.get("properties", {}), "properties")
        others = rules.get("additionalProperties", True)
        missing = set(_require_list(rules.get("required", []), "required"))
        names: list[str] = []
        position = _skip_space(text, start)
        while True:
            open_names = [name for name in properties if name not in names]
            if _peek_character(text, position) == "}" and not missing:
                return position + 1
            if names:
                position = _skip_character(text, position, ",")
            if not open_names and others is False:
                raise _MismatchError
            name, position = _skip_name(text, position, open_names if others is False else None)
            if name in names:
                raise _MismatchError
            names.append(name)
            missing.discard(name)
            position = _skip_character(text, _skip_space(text, position), ":")
            position = self._value(text, position, properties.get(name, others))
            position = _skip_space(text, position)

    def _items(self, text: str, start: int, schema: Json) -> int:
        """Read the items of an array, after its opening bracket."""
        position = _skip_space(text, start)
        if _peek_character(text, position) == "]":
            return position + 1
        while True:
            position = _skip_space(text, self._value(text, position, schema))
            if _peek_character(text, position) == "]":
                return position + 1
            position = _skip_character(text, position, ",")

    def _referred(self, reference: Json) -> Json:
        target: Json = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            raise InputError(f"the schema's reference {reference!r} must point into the schema")
        for step in reference.strip("#/").split("/") if reference != "#" else ():
            if not isinstance(target, dict) or step not in target:
                raise InputError(f"the schema's reference {reference!r} leads nowhere")
            target = target[step]
        return target


class _MismatchError(Exception):
    """The text does not fit, however it goes on."""


class _EndOfTextError(Exception):
    """The text fits as far as it goes."""


def _walk_schemas(schema: Json) -> Iterator[Mapping[str, Json]]:
    """Yield the schema and all schemas in it."""
    if not isinstance(schema, dict):
        return
    yield schema
    for keyword in ("properties", "$defs"):
        for part in _require_object(schema.get(keyword, {}), keyword).values():
            yield from _walk_schemas(part)
    for keyword in ("anyOf", "oneOf"):
        for part in _require_list(schema.get(keyword, []), keyword):
            yield from _walk_schemas(part)
    for keyword in ("items", "additionalProperties"):
        yield from _walk_schemas(schema.get(keyword))


def _require_object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise InputError(f"{where}: got {type(value).__name__}; need an object")
    return value


def _require_list(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise InputError(f"{where}: got {type(value).__name__}; need a list")
    return value


def _skip_space(text: str, position: int) -> int:
    match = SPACE.match(text, position)
    assert match is not None, "it matches no characters, too"
    return match.end()


def _peek_character(text: str, position: int) -> str:
    if position == len(text):
        raise _EndOfTextError
    return text[position]


def _skip_character(text: str, position: int, character: str) -> int:
    """Return the position after a character and the white space that follows it."""
    if _peek_character(text, position) != character:
        raise _MismatchError
    return _skip_space(text, position + 1)


def _skip_name(text: str, start: int, permitted: Sequence[str] | None) -> tuple[str, int]:
    """Read the name of a member; return it and where it ends."""
    if permitted is not None:
        end = _skip_literal(
            text, start, [json.dumps(name, ensure_ascii=False) for name in permitted]
        )
    else:
        _peek_character(text, start)
        end = _skip_string(text, start)
    name: str = json.loads(text[start:end])
    return name, end


def _skip_string(text: str, start: int) -> int:
    match = STRING.match(text, start)
    if match is None:
        raise _MismatchError
    if match.end() == len(text) or BEGUN_ESCAPE.fullmatch(text, match.end()):
        raise _EndOfTextError
    if text[match.end()] != '"':
        raise _MismatchError
    return match.end() + 1


def _skip_number(text: str, start: int, pattern: re.Pattern[str]) -> int:
    match = pattern.match(text, start)
    if match is not None and (match.end() == len(text) or text[match.end()] in ",]} "):
        return match.end()
    if pattern is NUMBER and BEGUN_NUMBER.fullmatch(text, start):
        raise _EndOfTextError
    if text[start:] == "-":
        raise _EndOfTextError
    raise _MismatchError


def _skip_literal(text: str, start: int, literals: Sequence[str]) -> int:
    """Read one of the literals, the longest that is there."""
    rest = text[start:]
    ends = [start + len(literal) for literal in literals if rest.startswith(literal)]
    if ends:
        return max(ends)
    if any(literal.startswith(rest) for literal in literals):
        raise _EndOfTextError
    raise _MismatchError
