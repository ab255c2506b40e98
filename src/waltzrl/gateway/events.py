"""Log lines about decisions that changed or withheld a reply, and about failed requests."""

import logging

from waltzrl.foundation.logs import fields
from waltzrl.gateway.exchange import ServedChoice

log = logging.getLogger(__name__)


def log_decision(served: ServedChoice) -> None:
    """Log what happened to a choice, unless its draft was returned; no content."""
    exchange = served.exchange
    if exchange.decision == "draft":
        return
    rounds = exchange.collaboration.rounds if exchange.collaboration else ()
    feedbacks = [turn.feedback for turn in rounds]
    extra = fields(
        id=exchange.id,
        decision=exchange.decision,
        reason=exchange.reason,
        rules=tuple({rule: None for feedback in feedbacks for rule in feedback.rules}),
        category=next((feedback.category for feedback in feedbacks if feedback.category), ""),
        failure=next((feedback.failure for feedback in feedbacks if feedback.failure), ""),
        key=exchange.caller,
        stage=exchange.stage,
        bundle=exchange.bundle,
        policy=exchange.policy,
        arm=exchange.arm,
        milliseconds=exchange.milliseconds,
    )
    if exchange.decision == "error":
        log.warning("the request failed", extra=extra)
    else:
        log.info("the reply was %s", exchange.decision, extra=extra)
