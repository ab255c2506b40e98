"""Reading the fields of a request: what is wrong is told by its name, what came and what is needed.

`where` is the path of a value as the client wrote it, such as `messages[0].content`.
"""

from typing import TypeGuard

import msgspec

from waltzrl.errors import RequestError
from waltzrl.serving.exchange import Json

DEEPEST = 100
"""Objects and lists inside each other; an encoder further down the stack must manage them too."""
MOST_TOKENS = 2**31
LONGEST_SHOWN = 40


def read_object(raw: bytes) -> dict[str, Json]:
    """Decode a request's body.

    Of a key that is there twice the last value counts, also for the upstream, because the body is
    encoded anew for it.

    Raises:
        RequestError: it is not UTF-8, not JSON, not an object, or nested too deeply.
    """
    try:
        body: Json = msgspec.json.decode(raw)
    except UnicodeDecodeError as error:
        raise _unreadable("UTF-8") from error
    except RecursionError as error:
        raise _too_deep() from error
    except msgspec.MsgspecError as error:
        raise _unreadable(f"JSON ({error})") from error
    if not isinstance(body, dict):
        raise _unreadable("a JSON object")
    if raw.count(b"[") + raw.count(b"{") > DEEPEST and _deeper(body, DEEPEST):
        raise _too_deep()
    return body


def wrong(where: str, got: Json, need: str) -> RequestError:
    """Return the error for a field."""
    return RequestError(
        400, "invalid_request", f"{where}: got {shown(got)}; need {need}", param=where
    )


def unsupported(where: str, why: str) -> RequestError:
    """Return the error for a field that asks for what the gateway cannot do."""
    return RequestError(400, "invalid_request", f"{where}: {why}", param=where)


def shown(value: Json) -> str:
    """Name a value in a few words."""
    if value is None:
        return "nothing"
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        return kind if value else f"{kind} with nothing in it"
    if isinstance(value, str):
        return repr(value if len(value) <= LONGEST_SHOWN else f"{value[:LONGEST_SHOWN]}...")
    return msgspec.json.encode(value).decode()[:LONGEST_SHOWN]


def as_object(value: Json, where: str) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise wrong(where, value, "an object")
    return value


def as_list(value: Json, where: str) -> list[Json]:
    if not isinstance(value, list):
        raise wrong(where, value, "a list")
    return value


def as_text(value: Json, where: str) -> str:
    """Return a string; a NUL, at which many stores and tokenizers stumble, is refused."""
    if not isinstance(value, str):
        raise wrong(where, value, "a string")
    if "\0" in value:
        raise unsupported(where, "has a NUL character; leave it out")
    return value


def as_name(value: Json, where: str) -> str:
    """Return a string that is not empty."""
    if not value:
        raise wrong(where, value, "a string that is not empty")
    return as_text(value, where)


def as_bool(value: Json, where: str) -> bool:
    """Return true or false; nothing is false."""
    if value is None or value is False:
        return False
    if value is True:
        return True
    raise wrong(where, value, "true or false")


def as_count(value: Json, where: str, most: int) -> int:
    """Return a whole number from 1 to `most`."""
    if _is_number(value) and isinstance(value, int) and 1 <= value <= most:
        return value
    raise wrong(where, value, f"a whole number from 1 to {most}")


def check_sampling(body: dict[str, Json]) -> None:
    """Check the options that policies of ours read, and that all three APIs spell alike.

    Raises:
        RequestError: a number is of another type or out of range.
    """
    for key in ("temperature", "top_p"):
        value = body.get(key)
        if value is not None and not (_is_number(value) and value >= 0):
            raise wrong(key, value, "a number that is not negative")
    for key in ("max_tokens", "max_completion_tokens"):
        if body.get(key) is not None:
            as_count(body[key], key, MOST_TOKENS)


def subject_of(body: dict[str, Json]) -> str:
    """Return the client's own name for its user, as OpenAI's APIs spell it; empty without one."""
    for key in ("safety_identifier", "user"):
        if body.get(key) is not None:
            return as_text(body[key], key)
    return ""


def _is_number(value: Json) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _deeper(body: dict[str, Json], limit: int) -> bool:
    """Say whether objects and lists are inside each other more than `limit` times."""
    level: list[dict[str, Json] | list[Json]] = [body]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def _unreadable(need: str) -> RequestError:
    return RequestError(400, "invalid_request", f"the body of the request is not {need}")


def _too_deep() -> RequestError:
    return RequestError(
        400, "invalid_request", f"the body of the request is nested more than {DEEPEST} deep"
    )
