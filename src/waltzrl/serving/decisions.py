"""Where everything that was served is written down: audit log, metrics, traces."""

from collections.abc import Callable, Sequence

from waltzrl.audit import Circumstances, Log, record_of
from waltzrl.errors import AuditError, RequestError
from waltzrl.serving.gateway import ServedChoice

Listener = Callable[[ServedChoice], None]
"""Hears of everything that was served: metrics, traces."""
RETRY_AFTER_SECONDS = 5.0


class DecisionLog:
    """A ledger."""

    def __init__(self, log: Log | None, told: Sequence[Listener]) -> None:
        """Write to `log` where there is one, and tell metrics and traces."""
        self._log = log
        self._told = told

    def require(self) -> None:
        """Check, before anything is served, that it can be audited.

        Raises:
            RequestError: 503, it cannot, and the operator wants nothing served without.
        """
        if self._log is not None:
            try:
                self._log.ready()
            except AuditError as error:
                raise _unaudited(error) from error

    def keep(self, served: ServedChoice) -> None:
        """Take note; the disk is not waited for.

        Raises:
            RequestError: as `require`; then the answer must not leave.
        """
        try:
            self._append(served)
        except AuditError as error:
            self._tell(ServedChoice(choice=served.choice, error="audit"))
            raise _unaudited(error) from error
        self._tell(served)

    def _tell(self, served: ServedChoice) -> None:
        for tell in self._told:
            tell(served)

    def _append(self, served: ServedChoice) -> None:
        if self._log is not None:
            said = served.collaboration
            about = said or served.request.exchange.prompt
            self._log.append(record_of(about, _circumstances(served), self._log.digest), said)


def _circumstances(served: ServedChoice) -> Circumstances:
    request = served.request
    exchange = request.exchange
    return Circumstances(
        id=exchange.prompt.id,
        decision=served.decision,
        reason=reason_of(served),
        who=request.caller.name,
        subject=exchange.subject,
        api=exchange.api,
        model=exchange.model,
        bundle=served.bundle.id,
        stage=str(served.bundle.stage),
        mode=request.mode,
        total_ms=served.milliseconds,
    )


def reason_of(served: ServedChoice) -> str:
    """Say why, in words that hold nothing of what was said."""
    said = served.collaboration
    if said is None:
        return served.error
    reason = ""
    for turn in said.rounds:
        if not turn.feedback.well_formed:
            return "not reviewed"
        if turn.feedback.unsafe:
            reason = "unsafe"
        elif turn.feedback.overrefuse and not reason:
            reason = "needless refusal"
    return reason


def _unaudited(error: AuditError) -> RequestError:
    return RequestError(503, "audit", str(error), retry_after_seconds=RETRY_AFTER_SECONDS)
