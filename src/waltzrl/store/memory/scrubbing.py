"""Scrubs values: the only way into the memory, so that no text is kept unscanned."""

from collections.abc import Callable, Mapping, Sequence

from waltzrl.errors import InputError
from waltzrl.store.memory.items import Json, Namespace

RECORDS: Sequence[Namespace] = (("safety", "waltzrl"), ("routing",), ("evolution",), ("desk",))
"""The namespaces below which machine-made fields are not scanned."""
MACHINE_MADE = frozenset(
    {
        *("id", "coaching_session_id", "interaction", "subject", "request_hash"),
        *("agent_id", "bundle", "release", "arm", "decision", "mode", "api"),
        *("category", "outcome", "label", "task_type", "state", "tasks"),
        *("digest", "parents", "operator", "ruling", "filters", "people"),
    }
)
"""Fields of our records that hold ids and digests, which a scanner might take for secrets, and
names from fixed lists."""


def scrub_value(
    namespace: Namespace, value: Mapping[str, Json], scrub: Callable[[str], str]
) -> dict[str, Json]:
    """Return a value with `scrub` applied to every text, keys included.

    In our own records the machine-made fields and the prompt's id, which is the request's, stay.

    Raises:
        InputError: something in it is not JSON.
    """
    if not any(namespace[: len(records)] == records for records in RECORDS):
        return _scrub_object(value, scrub)
    machine_made = {key: inner for key, inner in value.items() if key in MACHINE_MADE}
    rest = {key: inner for key, inner in value.items() if key not in MACHINE_MADE}
    clean = _scrub_object(rest, scrub)
    match value.get("collaboration"), clean.get("collaboration"):
        case {"prompt": {"id": id_}}, {"prompt": dict(prompt)}:
            # The pattern has bound the dict inside `clean`, which this changes.
            prompt["id"] = id_
    return {**clean, **machine_made}


def replace_unstorable(text: str) -> str:
    """Replace what databases cannot store: NULs, and halves of surrogate pairs."""
    if text.isascii() and "\0" not in text:
        return text
    # UTF-16 joins two halves that belong together and replaces those that stand alone.
    joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return joined.replace("\0", "\ufffd")


def _scrub_object(value: Mapping[str, Json], scrub: Callable[[str], str]) -> dict[str, Json]:
    return {
        scrub(replace_unstorable(str(key))): _scrub_any(inner, scrub)
        for key, inner in value.items()
    }


def _scrub_any(value: Json, scrub: Callable[[str], str]) -> Json:
    match value:
        case str():
            return scrub(replace_unstorable(value))
        case Mapping():
            return _scrub_object(value, scrub)
        case list() | tuple():
            return [_scrub_any(inner, scrub) for inner in value]
        case None | bool() | int() | float():
            return value
        case _:
            raise InputError(
                "the memory stores strings, numbers, booleans, lists, objects and null, not "
                f"{type(value).__qualname__}"  # the value itself may be private
            )
