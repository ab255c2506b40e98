"""Every error that waltzrl raises for a person to read.

    WaltzError                 anything below; the command line prints one line and exits with 2
    |-- InputError             a file, a line or a value that a person gave and can mend
    |   |-- RecipeError        a recipe with an unknown key, a wrong type or an impossible value
    |   `-- CheckpointError    weights or a manifest that are missing, cut short or altered
    |-- MissingExtraError      an optional dependency that is not installed
    |-- PolicyError            a policy that could not reply (server down, prompt too long)
    |-- RequestError           a request that the gateway answers with an error of its API
    |-- AuditError             decisions that cannot be logged, or a log that was altered
    |-- StorageError           a database that neither takes nor gives
    `-- DivergenceError        training stopped because the numbers went wrong

Each message says what we got, what we need and what to do. Mistakes of ours are `assert`s.
"""


class WaltzError(Exception):
    """A failure that a person can understand from its one-line message."""


class InputError(WaltzError):
    """A file, a line or a value that a person gave and can mend."""


class RecipeError(InputError):
    """A recipe with an unknown key, a wrong type or an impossible value."""


class CheckpointError(InputError):
    """Weights or a manifest that are missing, cut short or altered."""


class MissingExtraError(WaltzError):
    """An optional dependency that is not installed."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(f"{what} needs {package}: pip install 'waltzrl[{extra}]'")


class PolicyError(WaltzError):
    """A policy that could not reply."""


class RequestError(WaltzError):
    """A request that the gateway answers with an error, spelt as the request's API spells it."""

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        """Describe the failure.

        Args:
            status: HTTP status.
            kind: what failed, in snake case: invalid_request, authentication, permission,
                not_found, too_large, rate_limit, overloaded, upstream, upstream_timeout, audit.
            message: for the client; names the cause, never the text that was matched.
            param: the field of the request that is wrong, such as `messages[0].role`.
            retry_after_seconds: when it may be worth trying again.
        """
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class AuditError(WaltzError):
    """Decisions that cannot be logged, or a log that was altered."""


class StorageError(WaltzError):
    """A database that neither takes nor gives: down, locked, full, or from a newer waltzrl."""


class DivergenceError(WaltzError):
    """Training stopped because the numbers went wrong; the last good checkpoint is kept."""


OPTIONAL_MODULES = {
    "sqlalchemy": ("the memory", "SQLAlchemy", "flywheel"),
    "torch": ("a model in this process", "PyTorch", "train"),
    "transformers": ("a model in this process", "transformers", "train"),
}
"""Top-level module -> what needs it, its package, and the extra that installs it."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error for people when an optional module could not be imported; else None."""
    needed = OPTIONAL_MODULES.get((error.name or "").partition(".")[0])
    return None if needed is None else MissingExtraError(*needed)
