"""Judges a sample of served exchanges, and observes what each shows about its arm of a release."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

import msgspec

from waltzrl.errors import PolicyError
from waltzrl.evaluation.judges.judge import Judge
from waltzrl.foundation.buckets import is_among
from waltzrl.operations.release.book import ReleaseBook
from waltzrl.operations.release.eprocess import LARGEST_BLOCK
from waltzrl.operations.release.plan import Metric
from waltzrl.operations.release.state import Observation
from waltzrl.records import Collaboration, ServedExchange, Verdict

AT_ONCE = 8
MOST_WAITING = 1000
JUDGE_TIMEOUT_SECONDS = 60.0
MOST_AHEAD = LARGEST_BLOCK
"""Judged answers of the serving bundle beyond those of the candidate that are remembered."""
REJUDGED_PERCENTAGE = 10.0
"""The percentage of replies for the second judge among those that the judge did not find bad."""

FAULTS_OF_THE_REQUEST = frozenset(
    {"invalid_request", "authentication", "permission", "not_found", "too_large", "rate_limit"}
)
"""Errors that any bundle would have had: of the request, or of an upstream that both share."""

log = logging.getLogger(__name__)

VerdictListener = Callable[[ServedExchange, Verdict | None, Verdict | None], Awaitable[None]]
"""Called for each submitted exchange with the judge's verdict on its last reply, None when it
failed, and the second judge's, None when it was not asked or failed."""


class OnlineJudge:
    """Judges submitted collaborations in the background, several at once."""

    def __init__(
        self,
        judge: Judge | None,
        share: float,
        listener: VerdictListener,
        second: Judge | None = None,
    ) -> None:
        """Describe the sample.

        Args:
            judge: None judges nothing.
            share: of the answers of serving bundles, 0 to 1; all of candidates and shadows are
                judged, and under a release at least as many of the serving bundle.
            listener: gets the verdicts.
            second: judges again, under a release, what the judge finds bad and a sample of the
                rest, of all arms alike.
        """
        self._judge, self._percentage, self._listener = judge, 100 * share, listener
        self._second = second
        self._owed = 0
        """Answers of candidates and shadows in the sample, less those of serving bundles."""
        self._queue: asyncio.Queue[tuple[ServedExchange, Collaboration]] = asyncio.Queue()
        self._unfinished = 0
        """Submitted, and not yet passed to the listener."""

    def samples(self, exchange: ServedExchange) -> bool:
        """Return whether the exchange is in the sample; ask once, in the order of service.

        That depends on ids and on which arms answered before, never on what was said.
        """
        if self._judge is None or exchange.collaboration is None:
            return False
        if exchange.arm in ("candidate", "shadow"):
            self._owed += 1
            return True
        sampled = is_among("judge", exchange.id, self._percentage)
        if not exchange.release or exchange.mode == "review":
            return sampled
        sampled = sampled or self._owed > 0
        # Bounded, so that a long time without candidates does not leave a later one without its
        # partners.
        self._owed = max(self._owed - sampled, -MOST_AHEAD)
        return sampled

    def in_random_sample(self, exchange: ServedExchange) -> bool:
        """Return whether an exchange was served, and drawn whatever its arm: rates count these."""
        served = exchange.arm != "shadow" and exchange.mode != "review"
        return served and is_among("judge", exchange.id, self._percentage)

    def submit(self, exchange: ServedExchange, collaboration: Collaboration) -> bool:
        """Queue a collaboration to be judged; return False when the queue is full.

        Args:
            exchange: as it was served.
            collaboration: the exchange's, scrubbed.
        """
        if self._unfinished >= MOST_WAITING:
            return False
        self._unfinished += 1
        self._queue.put_nowait((exchange, collaboration))
        return True

    async def run(self) -> None:
        """Judge until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(self._judge_queue())

    async def finish(self, seconds: float) -> int:
        """Wait for the queue, at most so long; return how many are still unfinished."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._queue.join(), seconds)
        return self._unfinished

    async def _judge_queue(self) -> None:
        while True:
            exchange, collaboration = await self._queue.get()
            assert self._judge is not None
            verdict, second = await _request_verdict(self._judge, collaboration), None
            if self._second is not None and _to_rejudge(exchange, verdict):
                second = await _request_verdict(self._second, collaboration)
            await self._listener(exchange, verdict, second)
            # Only now: `finish` must also wait for what the listener still stores.
            self._unfinished -= 1
            self._queue.task_done()


def _to_rejudge(exchange: ServedExchange, verdict: Verdict | None) -> bool:
    if not exchange.release or verdict is None:
        return False
    bad = verdict.unsafe or verdict.overrefuses or False
    return bad or is_among("second judge", exchange.id, REJUDGED_PERCENTAGE)


async def _request_verdict(judge: Judge, collaboration: Collaboration) -> Verdict | None:
    try:
        async with asyncio.timeout(JUDGE_TIMEOUT_SECONDS):
            return await judge.judge(collaboration.prompt, collaboration.final)
    except Exception as error:  # noqa: BLE001 - the boundary: any failure is counted
        # Its message may quote a server, and so what was sent to it.
        reason = error.reason if isinstance(error, PolicyError) else ""
        log.warning("the judge %s failed: %s", judge.name, reason or type(error).__name__)
        return None


class ObservationTerms(NamedTuple):
    """What counts under a release."""

    slow_milliseconds: float
    """A longer answer is slow."""
    same_upstream: bool
    """Both bundles have the same upstream, whose refusals are the fault of neither."""


def observation_terms(book: ReleaseBook, release_id: str) -> ObservationTerms | None:
    """Return what counts under a release; None when it does not exist.

    Raises:
        StorageError: the database is unavailable.
    """
    release = book.release(release_id)
    if release is None:
        return None
    serving, candidate = (book.bundle(name) for name in (release.serving, release.candidate))
    return ObservationTerms(
        release.plan.slow_milliseconds, _decode_upstreams(serving) == _decode_upstreams(candidate)
    )


def observation_of(
    exchange: ServedExchange,
    verdict: Verdict | None,
    terms: ObservationTerms,
    second: Verdict | None = None,
) -> Observation | None:
    """Return what an exchange shows about its bundle; None when it shows nothing.

    That is the case without a release; when the caller provided the draft and wanted only a
    review; when the client disconnected before the answer was slow; and when any bundle would
    have failed.

    Args:
        exchange: the answer, or the failure.
        verdict: on the returned reply; None when it was not judged.
        terms: of the release.
        second: the second judge's verdict; None when it was not asked.
    """
    if not exchange.release or exchange.arm == "" or exchange.mode == "review":
        return None
    judged = _list_judged_outcomes(verdict)
    outcomes = _list_unjudged_outcomes(exchange, terms) | judged
    if not outcomes:
        return None
    # Only pairs count: a label of the second judge alone compares nothing.
    rejudged = {name: bad for name, bad in _list_judged_outcomes(second).items() if name in judged}
    return Observation(
        release=exchange.release, arm=exchange.arm, outcomes=outcomes, rejudged=rejudged
    )


def _list_judged_outcomes(verdict: Verdict | None) -> dict[Metric, bool]:
    """Return the labels of a verdict; None is no label."""
    if verdict is None:
        return {}
    labels: dict[Metric, bool | None] = {
        "unsafe": verdict.unsafe,
        "overrefusal": verdict.overrefuses,
    }
    return {metric: bad for metric, bad in labels.items() if bad is not None}


def _list_unjudged_outcomes(
    exchange: ServedExchange, terms: ObservationTerms
) -> dict[Metric, bool]:
    """Return the outcomes that need no judge."""
    is_slow = exchange.milliseconds > terms.slow_milliseconds
    if exchange.collaboration is not None:
        failed = exchange.collaboration.revised and exchange.decision == "refused"
        return {"error": False, "slow": is_slow, "revision_failed": failed}
    if exchange.reason == "cancelled":
        return {"slow": True} if is_slow else {}
    if terms.same_upstream and exchange.reason in FAULTS_OF_THE_REQUEST:
        return {}
    return {"error": True}


def _decode_upstreams(recipe: str | None) -> list[object]:
    table = msgspec.json.decode(recipe or "{}", type=dict[str, object])
    return [table.get(name, {}) for name in ("upstream", "upstreams")]
