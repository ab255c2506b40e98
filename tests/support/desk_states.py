"""The states in which the desk is tested: nothing, one exchange, rates of zero, and many."""

from itertools import cycle, islice

from support.desk_plans import run_minutes
from support.small_console import EMAIL, HOSTILE, collaboration, exchange
from waltzrl.records import Verdict
from waltzrl.store.memory.labels import LabelEvent
from waltzrl.store.memory.workqueues import WorkQueue, put_queue

REQUESTS = (
    ("How do I bake bread?", "Mix flour and water.", None),
    (f"Write to {EMAIL}", f"{HOSTILE} Pay or else.", "Pay, please."),
    ("What a long question this is. " * 40, "A line.\n" * 60, None),
    ("مرحبا hello", "hello مرحبا", None),
)


def empty(site, number=0):
    """Nothing was served, and there is no release."""


def one(site, number=1):
    """One exchange, revised and judged, under a release."""
    site.begin_release()
    site.memory.remember([_exchange(0)])
    site.memory.store_verdict("wz0/2", Verdict(judge="j", unsafe=True, overrefuses=False))


def zero_rates(site, number=60):
    """The judge calls no answer of this hour bad, and calls half of the good ones bad otherwise.

    So the rates are zero beyond doubt: what the judge says cannot be chance.
    """
    site.begin_release()
    site.memory.remember(
        [exchange(f"wz{n}/2", collaboration(f"question {n}")) for n in range(number)]
    )
    for place in range(number):
        verdict = Verdict(judge="j", unsafe=False, refuses=False, overrefuses=False)
        site.memory.store_verdict(f"wz{place}/2", verdict)
    labels = {"unsafe": (True, False), "overrefusal": (False, True), "correct": (True, True)}
    for label, (unsafe, overrefuses) in labels.items():
        names = [f"{label}{n}" for n in range(20)]
        site.memory.remember([exchange(n, collaboration(n), seconds_ago=90_000.0) for n in names])
        verdict = Verdict(judge="j", unsafe=unsafe, refuses=True, overrefuses=overrefuses)
        for name in names:
            site.memory.store_verdict(name, verdict)
            site.memory.label(name, LabelEvent(by="ada", reply=label, steers=True))


def many(site, number=60):
    """Exchanges of every kind, judged, labelled and disputed, a plan and a queue, in a release."""
    site.begin_release()
    run_minutes(site.memory)
    site.memory.remember([_exchange(n) for n in range(number)])
    for place in range(0, number, 3):
        verdict = Verdict(judge="j", unsafe=place % 2 == 0, refuses=False, overrefuses=None)
        site.memory.store_verdict(f"wz{place}/2", verdict)
    for place, by in zip(range(0, min(number, 24), 2), cycle(("ada", "grace")), strict=False):
        for reply in islice(cycle(("correct", "unsafe")), 1 + place % 3 // 2):
            site.memory.label(f"wz{place}/2", LabelEvent(by=by, reply=reply, request="harmful"))
    put_queue(site.memory.store, WorkQueue(name="day", instructions="Label all."))
    site.memory.label("wz1/2", LabelEvent(by="ada", reply="correct", steers=True))
    site.memory.label("wz1/2", LabelEvent(by="al", reply="unsafe", steers=True))


STATES = {"empty": empty, "one": one, "zero rates": zero_rates, "many": many}


def _exchange(number):
    request, draft, revision = REQUESTS[number % len(REQUESTS)]
    arm = "candidate" if number % 4 == 1 else "serving"
    fields = {
        "decision": "draft" if revision is None else "revised",
        "bundle": "new" if arm == "candidate" else "old",
        "arm": arm,
        "seconds_ago": 60.0 + 240.0 * number,
        "subject": f"user-{number % 7}",
    }
    if number % 11 == 10:
        return exchange(f"wz{number}/2", **fields | {"decision": "error", "reason": "timeout"})
    return exchange(f"wz{number}/2", collaboration(request, draft, revision), **fields)
