"""Finds tool calls in the text of a model, joins those that a server streams, and names them.

In texts, the formats are those of Hermes and Qwen, and of Llama.
"""

import json
import re
import secrets
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

from waltzrl.policies.server_json import mend_text
from waltzrl.records import ToolCall

OPENING = "<tool_call>"
"""The mark that precedes a call in the format of Hermes and Qwen."""
_HERMES = re.compile(r"\s*<tool_call>(.*?)(?:</tool_call>\s*|\Z)", re.DOTALL)
_LLAMA_PREFIX = "<|python_tag|>"
_DECODER = json.JSONDecoder()


def read_calls(text: str, names: Collection[str]) -> tuple[str, tuple[ToolCall, ...]]:
    """Return the text without its calls, and the calls of the functions in `names`.

    Hermes and Qwen write `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, and Llama
    `{"name": ..., "parameters": {...}}`, several divided by semicolons, without other text. What
    is no well-formed call of a known function stays text.
    """
    bare = text.strip().removeprefix(_LLAMA_PREFIX).strip()
    if bare.startswith("{"):
        calls = [_convert_to_call(part, names) for part in _yield_objects(bare)]
        if calls and all(calls):
            return "", tuple(call for call in calls if call)
    calls_found: list[ToolCall] = []

    def take(match: re.Match[str]) -> str:
        calls = [_convert_to_call(part, names) for part in _yield_objects(match[1].strip())]
        if not calls or not all(calls):
            return match[0]
        calls_found.extend(call for call in calls if call)
        return ""

    return _HERMES.sub(take, text), tuple(calls_found)


def before_calls(text: str) -> str:
    """Return the beginning of a growing text that can be no part of a call."""
    if text.lstrip().startswith(("{", _LLAMA_PREFIX)):
        return ""
    before, opening, _ = text.partition(OPENING)
    return before.rstrip() if opening else text


def _yield_objects(text: str) -> Iterator[object]:
    """Yield the JSON objects in `text`, divided by semicolons; None where it is something else."""
    position = 0
    while position < len(text):
        try:
            value, position = _DECODER.raw_decode(text, position)
        except (ValueError, RecursionError):
            yield None
            return
        yield value
        while position < len(text) and text[position] in "; \n\t":
            position += 1


def _convert_to_call(value: object, names: Collection[str]) -> ToolCall | None:
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(value, dict) or not isinstance(name, str) or name not in names:
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    if not isinstance(arguments, dict):
        return None
    return ToolCall(
        id=new_call_id(),
        name=name,
        arguments=json.dumps(arguments, ensure_ascii=False),
    )


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def with_ids(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Give a new id to each call that has none, or that of a call before it.

    The client answers a call by its id, so without one the conversation could not go on.
    """
    named: dict[str, ToolCall] = {}
    for call in calls:
        call_id = call.id if call.id and call.id not in named else new_call_id()
        named[call_id] = replace(call, id=call_id)
    return tuple(named.values())


def calls_something(call: ToolCall) -> bool:
    """Return whether a call has a name or arguments; some servers send one that has neither."""
    return bool(call.name or call.arguments.strip())


def is_complete(arguments: str) -> bool:
    """Return whether the arguments of a call are a JSON object, or none at all."""
    try:
        return not arguments.strip() or isinstance(json.loads(arguments), dict | None)
    except (ValueError, RecursionError):
        return False


def with_decoded_arguments(calls: Iterable[ToolCall]) -> tuple[ToolCall, ...]:
    """Return the calls with the arguments of a function that are an object within a string decoded.

    Some servers encode them twice.
    """
    return tuple([_decode_arguments(call) for call in calls])


def _decode_arguments(call: ToolCall) -> ToolCall:
    if call.kind != "function" or not call.arguments.lstrip().startswith('"'):
        return call
    try:
        decoded = json.loads(call.arguments)
    except (ValueError, RecursionError):
        return call
    return replace(call, arguments=mend_text(decoded)) if is_complete(decoded) else call


class CallFragments:
    """The fragments of one call."""

    def __init__(self, index: object, first: ToolCall) -> None:
        self.index = index
        self.id = self.name = self.signature = ""
        self.new_id = new_call_id()
        """The id of the call unless the server gives one that no other call has."""
        self._first = first
        self._arguments: list[str] = []

    def add(self, fragment: ToolCall) -> None:
        self.id = self.id or fragment.id
        self.name = self.name or fragment.name
        if fragment.kind != "function":
            self._first = replace(self._first, kind=fragment.kind)
        if fragment.arguments[:1] == "{" and self._arguments == ["{}"]:
            self._arguments.clear()  # an empty object in the place of those that follow
        if fragment.arguments and not self._has_whole(fragment.arguments):
            self._arguments.append(fragment.arguments)

    def _has_whole(self, arguments: str) -> bool:
        """Return whether these are the whole arguments, which some servers repeat at the end."""
        if not (self._arguments and arguments.endswith("}")):
            return False
        first, last = self._arguments[0], self._arguments[-1]
        # Of most fragments these tell it, and what came before is not joined.
        may_be_whole = arguments.startswith(first) and arguments.endswith(last)
        return may_be_whole and arguments == self.arguments and self.is_whole

    @property
    def arguments(self) -> str:
        """The arguments; of fragments that each begin with the one before, it is the last one."""
        joined = "".join(self._arguments)
        parts = self._arguments
        if len(parts) > 1 and all(part.startswith(before) for before, part in pairwise(parts)):
            return parts[-1] if is_complete(parts[-1]) and not is_complete(joined) else joined
        return joined

    @property
    def is_whole(self) -> bool:
        """Whether the arguments so far are an object, which no further fragment continues."""
        last = self._arguments[-1] if self._arguments else ""
        return last.rstrip().endswith("}") and is_complete(self.arguments)

    @property
    def call(self) -> ToolCall:
        return replace(
            self._first,
            id=mend_text(self.id),
            name=mend_text(self.name),
            arguments=mend_text(self.arguments),
        )


class CallAssembler:
    """Joins the fragments of tool calls that a server streams.

    A fragment belongs to the call of its `index`. Many servers leave the index out or give every
    call the same, so a new id or a new name begins a call, too. Some repeat the name in every
    fragment and some make a new id for each, so a repeated name begins a call only after arguments
    that are complete, and under an index that is known a new id does so only with a name.
    """

    def __init__(self) -> None:
        self._calls: list[CallFragments] = []
        self._by_index: dict[object, CallFragments] = {}
        self._by_id: dict[str, CallFragments] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, index: object, fragment: ToolCall, signature: str = "") -> None:
        """Add a fragment; the index is None, and a text empty, where the server gives none."""
        call = self._find(index, fragment)
        same = call is not None and call.id == fragment.id and fragment.name in ("", call.name)
        # Some servers repeat id and name alone, which begins no call after one that is whole.
        adds_something = bool(fragment.arguments) or not same
        if call is None or (adds_something and _begins_another(call, index, fragment)):
            if call is not None and same and call.id and call.arguments == fragment.arguments:
                return  # the server repeats the whole call
            call = CallFragments(index, fragment)
            self._calls.append(call)
        if index is not None:
            self._by_index[index] = call
        call.add(fragment)
        call.signature = signature or call.signature
        # Not an id that a server makes anew for a later fragment: the call keeps its first one.
        if call.id and call.id == fragment.id:
            self._by_id[call.id] = call

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        """The calls so far, each with an id of its own, which it keeps."""
        return tuple(call for call, _ in self._named)

    @property
    def signatures(self) -> dict[str, str]:
        """The signatures of the calls that have one, by their ids."""
        return {call.id: signature for call, signature in self._named if signature}

    @property
    def _named(self) -> Iterable[tuple[ToolCall, str]]:
        """The calls, each with an id of its own, and their signatures."""
        named: dict[str, tuple[ToolCall, str]] = {}
        for fragments in self._calls:
            call = fragments.call
            if calls_something(call):
                call_id = call.id if call.id and call.id not in named else fragments.new_id
                named[call_id] = replace(call, id=call_id), fragments.signature
        return named.values()

    def _find(self, index: object, fragment: ToolCall) -> CallFragments | None:
        """Return the call that a fragment may belong to: that of its id, of its index, the last."""
        named = self._by_id.get(fragment.id)
        if named is not None and (index is None or named.index in (index, None)):
            return named
        if index in self._by_index:
            return self._by_index[index]
        may_be_last = index is None or not (fragment.id or fragment.name)
        return self._calls[-1] if self._calls and may_be_last else None


def _begins_another(call: CallFragments, index: object, fragment: ToolCall) -> bool:
    """Return whether a fragment, which may belong to `call`, is the beginning of another one."""
    if not fragment.name and (index is not None or not fragment.id):
        return False
    if fragment.name and call.name and fragment.name != call.name:
        return True
    if fragment.id and call.id and fragment.id != call.id:
        return True
    return call.is_whole and (bool(fragment.name) or fragment.id != call.id)
