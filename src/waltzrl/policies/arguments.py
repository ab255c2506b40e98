"""Checks arguments that would otherwise fail in the middle of a call, or let all calls wait."""

from types import UnionType

from waltzrl.errors import InputError


def check_remote_arguments(
    model: object, api_key: object, concurrency: object, timeout_seconds: object, retries: object
) -> None:
    """Check the arguments of `RemotePolicy` but its URL; no error shows the key.

    Raises:
        InputError: one is of another type, or too small.
    """
    _check_argument("model", model, str, "the model's name on the server, a string")
    if not isinstance(api_key, str | None):
        got = type(api_key).__name__
        raise _argument_error("api_key", got, "a string, or None for a server without keys")
    if api_key and not (api_key.isascii() and api_key.strip().isprintable()):
        got = "characters that an HTTP header cannot carry"
        raise _argument_error("api_key", got, "the key alone")
    _check_argument("concurrency", concurrency, int, "a whole number, 1 or more", least=1)
    _check_argument("timeout_seconds", timeout_seconds, int | float, "seconds, above 0", least=1e-9)
    _check_argument("retries", retries, int, "a whole number, 0 or more", least=0)


def _check_argument(
    name: str, value: object, kind: type | UnionType, need: str, *, least: float | None = None
) -> None:
    fits = isinstance(value, kind) and not isinstance(value, bool)
    large = least is None or (isinstance(value, int | float) and value >= least)
    if not (fits and large):
        raise _argument_error(name, repr(value), need)


def _argument_error(name: str, got: str, need: str) -> InputError:
    return InputError(f"RemotePolicy: {name}: got {got}; need {need}")
