"""The one door of the memory: each text of a value is scanned before it is kept."""

from collections.abc import Callable, Mapping

from waltzrl.errors import InputError
from waltzrl.memory.items import Json, Namespace

RECORDS: Namespace = ("safety", "waltzrl")
"""In namespaces below it, what our own machines made is not scanned."""
MACHINE_MADE = frozenset(
    {
        *("id", "coaching_session_id", "interaction", "subject", "request_hash"),
        *("agent_id", "bundle", "release", "arm", "decision", "mode", "api"),
        *("category", "outcome", "label"),
    }
)
"""Fields of our records that hold ids, digests, which a scanner might take for secrets, and names
from lists of ours."""


def scrubbed(
    namespace: Namespace, value: Mapping[str, Json], scrub: Callable[[str], str]
) -> dict[str, Json]:
    """Return a value whose every text, keys included, has been through `scrub`.

    Left as they are: in our own records the fields that machines made, and the prompt's id, which
    is the request's.

    Raises:
        InputError: there is something in it that is not JSON.
    """
    if namespace[: len(RECORDS)] != RECORDS:
        return _object(value, scrub)
    kept = {key: one for key, one in value.items() if key in MACHINE_MADE}
    scanned = _object({key: one for key, one in value.items() if key not in kept}, scrub)
    _keep_prompt_id(value, scanned)
    return {**scanned, **kept}


def storable(text: str) -> str:
    """Replace what databases cannot hold: NULs, and halves of surrogate pairs."""
    if text.isascii() and "\0" not in text:
        return text
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "\ufffd")


def _keep_prompt_id(value: Mapping[str, Json], scanned: Mapping[str, Json]) -> None:
    match value.get("collaboration"), scanned.get("collaboration"):
        case {"prompt": {"id": id_}}, {"prompt": dict(prompt)}:
            prompt["id"] = id_


def _object(value: Mapping[str, Json], scrub: Callable[[str], str]) -> dict[str, Json]:
    return {scrub(storable(str(key))): _any(one, scrub) for key, one in value.items()}


def _any(value: Json, scrub: Callable[[str], str]) -> Json:
    match value:
        case str():
            return scrub(storable(value))
        case Mapping():
            return _object(value, scrub)
        case list() | tuple():
            return [_any(one, scrub) for one in value]
        case None | bool() | int() | float():
            return value
        case _:
            raise InputError(
                "the memory keeps texts, numbers, truths, lists, objects and null, not "
                f"{type(value).__qualname__}"  # what it holds may be private
            )
