"""Errors as OpenAI's APIs spell them."""

from waltzrl.errors import RequestError
from waltzrl.serving.exchange import Json

TYPES = {
    "invalid_request": ("invalid_request_error", None),
    "authentication": ("invalid_request_error", "invalid_api_key"),
    "permission": ("invalid_request_error", "permission_denied"),
    "not_found": ("invalid_request_error", "not_found"),
    "too_large": ("invalid_request_error", "request_too_large"),
    "rate_limit": ("requests", "rate_limit_exceeded"),
}
"""Kind -> type and code; all other kinds are a `server_error` whose code is the kind."""


def error_object(problem: RequestError) -> dict[str, Json]:
    """Return what stands under `error`."""
    kind, code = TYPES.get(problem.kind, ("server_error", problem.kind))
    return {"message": str(problem), "type": kind, "param": problem.param, "code": code}
