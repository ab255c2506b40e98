"""What was served is audited first, and notified as it is."""

import pytest

from support.served_examples import SAFE, served
from waltzrl.errors import RequestError
from waltzrl.gateway.gateway import DecisionLog
from waltzrl.store.audit.log import LogSettings
from waltzrl.store.audit.reading import read_entries
from waltzrl.store.audit.writer import LocalLog


def open_log(folder):
    settings = LogSettings(on_failure="refuse", commit_seconds=0.005)
    return LocalLog.open(folder / "log", key=folder / "key", settings=settings)


@pytest.mark.promise(
    "Legal duties", "AI Act 12(1): events are recorded automatically over the lifetime"
)
def test_an_answer_is_audited_and_told(tmp_path):
    notified, answer = [], served((SAFE, None))
    with open_log(tmp_path) as log:
        DecisionLog(log, [notified.append]).record(answer)
    decisions = [entry.decision for entry in read_entries(tmp_path / "log") if entry.decision]
    assert [decision.decision for decision in decisions] == ["draft"]
    assert notified == [answer]


def test_an_answer_that_cannot_be_audited_is_told_as_the_error_that_its_client_gets(tmp_path):
    notified = []
    log = open_log(tmp_path)
    log.close()
    with pytest.raises(RequestError) as raised:
        DecisionLog(log, [notified.append]).record(served((SAFE, None)))
    assert (raised.value.status, raised.value.kind) == (503, "audit")
    assert [
        (choice.exchange.decision, choice.exchange.reason, choice.exchange.collaboration)
        for choice in notified
    ] == [("error", "audit", None)]


def test_without_a_log_everything_is_told():
    notified, answer = [], served((SAFE, None))
    book = DecisionLog(None, [notified.append])
    book.require()
    book.record(answer)
    assert notified == [answer]
