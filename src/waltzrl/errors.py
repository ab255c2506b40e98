"""The exceptions whose messages waltzrl shows to people.

    WaltzError                 any of these; the command line prints one line and exits with 2
    |-- InputError             an invalid file, line or value that the user can correct
    |   |-- RecipeError        a recipe with an unknown key, a wrong type or an invalid value
    |   |-- CheckpointError    weights or a manifest that are missing, truncated or altered
    |   `-- CycleError         tasks that wait for each other
    |-- MissingExtraError      an optional dependency that is not installed
    |   |-- MissingPackageError    a distribution of ours is not installed
    |   `-- MissingFrameworkError  the framework of an adapter is not installed
    |-- SecurityError          an agent without a valid token
    |-- PolicyError            a policy that could not reply: server down, prompt too long
    |   |-- ProgramError       a program in the sandbox that failed or was stopped
    |   `-- OverloadError      a reply that no model could review in time
    |-- RequestError           a request that the gateway rejects with an error of the client's API
    |-- AuditError             decisions that cannot be logged, or an altered audit log
    |-- StorageError           a database that is unavailable, locked, full, or too new
    |-- BudgetError            work stopped because it reached its cap, or cannot keep it
    |-- ScoringError           training stopped because too few rollouts could be sampled or scored
    |-- TargetError            training missed a target of its recipe; exits with 4
    |-- RankError              training stopped because another of its processes ended
    `-- DivergenceError        training stopped because a value diverged

Each message states what was found, what is needed and what to do. Bugs in waltzrl itself are
`assert`s.
"""

EXIT_STATUS = 2
"""The exit status of a command that ends with one of these."""


class WaltzError(Exception):
    """A failure that its one-line message explains to the user."""

    exit_status = EXIT_STATUS
    """The exit status of a command that ends with it."""


class InputError(WaltzError):
    """An invalid file, line or value that the user can correct."""


class RecipeError(InputError):
    """A recipe with an unknown key, a wrong type or an invalid value."""


class CheckpointError(InputError):
    """Weights or a manifest that are missing, truncated or altered."""


class CycleError(InputError):
    """Tasks that wait for each other; the message names them."""


class SecurityError(WaltzError):
    """An agent without a valid token."""


class MissingExtraError(WaltzError):
    """An optional dependency that is not installed."""

    def __init__(self, feature: str, package: str, extra: str) -> None:
        super().__init__(f"{feature} needs {package}: pip install 'waltzrl[{extra}]'")


class MissingPackageError(MissingExtraError):
    """A distribution of ours that is not installed."""

    def __init__(self, feature: str, distribution: str) -> None:
        # Not `super()`, whose message would name an extra of waltzrl.
        WaltzError.__init__(
            self, f"{feature} is in the package {distribution}: pip install {distribution}"
        )


class MissingFrameworkError(MissingExtraError):
    """The framework of an adapter, which users install themselves, is not installed."""

    def __init__(self, framework: str, distribution: str) -> None:
        WaltzError.__init__(
            self, f"the adapter for {framework} needs it: pip install '{distribution}'"
        )


CONTEXT_EXCEEDED = "context exceeded"
"""The reason of a `PolicyError` where a conversation is too long for the model."""


class PolicyError(WaltzError):
    """A policy that could not reply."""

    def __init__(self, message: str, *, reason: str = "") -> None:
        """Describe the failure.

        Args:
            message: for people; may quote a server, and so what was sent to it.
            reason: why, in words that hold no content, such as `HTTP 503`; for logs and audit.
        """
        super().__init__(message)
        self.reason = reason


class ProgramError(PolicyError):
    """A program in the sandbox that failed or was stopped; no fault of what it was asked."""


class OverloadError(PolicyError):
    """A reply that no model could review in time; the same may succeed later."""

    def __init__(self, *, reason: str, retry_after_seconds: float) -> None:
        """Describe the failure.

        Args:
            reason: as in `PolicyError`: `timeout`, `overloaded`, or `breaker` and what opened it.
            retry_after_seconds: until the reviewer may have time.
        """
        super().__init__(f"no reviewer had time for the reply ({reason})", reason=reason)
        self.retry_after_seconds = retry_after_seconds


class RequestError(WaltzError):
    """A request that the gateway rejects; the client receives it in the format of its API."""

    code: str | None = None
    """The upstream's own code for the error, such as `context_length_exceeded`."""
    error_type: str | None = None
    """The upstream's own type of the error, such as `invalid_request_error`."""

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
            kind: the kind of failure, in snake case: invalid_request, authentication, permission,
                not_found, too_large, rate_limit, overloaded, upstream, upstream_timeout,
                unreviewed, audit, internal.
            message: for the client; names the cause and never quotes the text that matched.
            param: the invalid field of the request, such as `messages[0].role`.
            retry_after_seconds: how long the client should wait before it retries.
        """
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.param = param
        self.retry_after_seconds = retry_after_seconds


class AuditError(WaltzError):
    """Decisions that cannot be logged, or an audit log that was altered."""


class StorageError(WaltzError):
    """A database that is unavailable, locked, full, or of another version of waltzrl."""


class BudgetError(WaltzError):
    """Work stopped because it reached its cap, or because a price that the cap needs is unknown."""


class ScoringError(WaltzError):
    """Training stopped before it learnt, because too little could be sampled or scored."""


class TargetError(WaltzError):
    """Training missed a target of its recipe; exits with 4, and keeps its checkpoints."""

    exit_status = 4


class RankError(WaltzError):
    """Training stopped because another of its processes ended or did not answer."""


class DivergenceError(WaltzError):
    """Training stopped because a value diverged; the last good checkpoint is kept."""


LOCAL_MODEL = "a model in this process"
OPTIONAL_MODULES = {
    "accelerate": (LOCAL_MODEL, "Accelerate", "train"),
    "fsspec": ("checkpointing.copies", "fsspec", "train"),
    "genai_prices": ("the prices of public models", "genai-prices", "prices"),
    "gguf": ("a GGUF file", "gguf", "smollm2"),
    "jinja2": (LOCAL_MODEL, "Jinja2", "train"),
    "llguidance": ("a reply that fits a schema", "llguidance", "train"),
    "matplotlib": ("the report", "matplotlib", "report"),
    "numpy": (LOCAL_MODEL, "NumPy", "train"),
    "opentelemetry": ("tracing", "OpenTelemetry", "otel"),
    "peft": (LOCAL_MODEL, "PEFT", "train"),
    "phonenumbers": ("redaction", "phonenumbers", "flywheel"),
    "presidio_analyzer": ("redaction by Presidio", "presidio-analyzer", "presidio"),
    "psycopg": ("PostgreSQL", "psycopg", "postgres"),
    "psycopg_pool": ("PostgreSQL", "psycopg-pool", "postgres"),
    "pyarrow": ("Parquet", "pyarrow", "parquet"),
    "ray": ("compute.engine ray", "Ray", "ray"),
    "safetensors": (LOCAL_MODEL, "safetensors", "train"),
    "sqlalchemy": ("the memory", "SQLAlchemy", "flywheel"),
    "starlette": ("the review desk", "Starlette", "flywheel"),
    "stdnum": ("redaction", "python-stdnum", "flywheel"),
    "tensorboard": ("TensorBoard", "tensorboard", "train"),
    "tokenizers": (LOCAL_MODEL, "tokenizers", "train"),
    "torch": (LOCAL_MODEL, "PyTorch", "train"),
    "transformers": (LOCAL_MODEL, "transformers", "train"),
    "wandb": ("wandb_project", "wandb", "wandb"),
}
"""Each optional top-level module with what needs it, its package, and the extra that installs
it."""


def missing_extra(error: ModuleNotFoundError) -> MissingExtraError | None:
    """Return the error for a failed import of an optional module; None for other modules."""
    extra = OPTIONAL_MODULES.get((error.name or "").partition(".")[0])
    return None if extra is None else MissingExtraError(*extra)


def explain(error: Exception) -> WaltzError | None:
    """Return the error for a missing module, half a character, or refused memory; else None."""
    if isinstance(error, ModuleNotFoundError):
        return missing_extra(error)
    if isinstance(error, UnicodeEncodeError) and "\ud800" <= error.object[error.start] <= "\udfff":
        return InputError(
            f"{error.object[:60]!r} holds half a character, or a byte that is none in the encoding"
            " of this terminal; fix it"
        )
    # By name and message: torch may not be imported here, and its errors differ by device.
    refused = (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's, of a GPU
        or "can't allocate memory" in str(error)  # torch's RuntimeError, of a CPU
        or "Cannot allocate memory" in str(error)  # a file of weights that cannot be mapped
    )
    if not refused:
        return None
    return WaltzError(
        "out of memory; what was saved is kept. End other programs, or in training lower"
        " optimizer.micro_batch_tokens or set compute.checkpoint_activations=true, and run the"
        " command again; --dry-run plans the memory"
    )
