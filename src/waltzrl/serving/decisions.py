"""Where every decision is recorded: audit log, metrics, traces, memory."""

from collections.abc import Callable, Sequence

from msgspec import structs

from waltzrl.audit import Log, record_of
from waltzrl.errors import AuditError, RequestError
from waltzrl.serving.gateway import ServedChoice

Listener = Callable[[ServedChoice], None]
"""Called with every choice that was served; returns at once and raises nothing."""
RETRY_AFTER_SECONDS = 5.0


class DecisionLog:
    """Writes decisions to the audit log, where there is one, and tells the listeners."""

    def __init__(self, log: Log | None, listeners: Sequence[Listener]) -> None:
        self._log = log
        self._listeners = listeners

    def require(self) -> None:
        """Check, before anything is served, that it can be audited.

        Raises:
            RequestError: 503, it cannot, and the operator wants nothing served unaudited.
        """
        if self._log is not None:
            try:
                self._log.ready()
            except AuditError as error:
                raise _unaudited(error) from error

    def record(self, served: ServedChoice) -> None:
        """Record a choice without waiting for the disk.

        Raises:
            RequestError: as `require`; then the answer must not be returned.
        """
        exchange = served.exchange
        if self._log is not None:
            record = record_of(exchange, served.request.chat.prompt, self._log.digest)
            try:
                self._log.append(record, exchange.collaboration)
            except AuditError as error:
                failed = structs.replace(
                    exchange, decision="error", reason="audit", milliseconds=0.0, collaboration=None
                )
                self._tell(ServedChoice(exchange=failed, request=served.request))
                raise _unaudited(error) from error
        self._tell(served)

    def _tell(self, served: ServedChoice) -> None:
        for listener in self._listeners:
            listener(served)


def _unaudited(error: AuditError) -> RequestError:
    return RequestError(503, "audit", str(error), retry_after_seconds=RETRY_AFTER_SECONDS)
