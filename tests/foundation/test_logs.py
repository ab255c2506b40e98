"""Log lines: one an event, as text and as JSON, with the request's id and without content."""

import io
import json
import logging
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from waltzrl.foundation.logs import (
    JsonLines,
    LogHandler,
    RequestContext,
    TextLines,
    configure_logs,
    current_request,
    fields,
)

SECRET = "xyzzy"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def lines(formatter, work):
    """Return what `work(log)` writes through a formatter."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(formatter)
    log = logging.Logger("waltzrl.gateway.upstream")
    log.addHandler(handler)
    work(log)
    return stream.getvalue().splitlines()


def in_request(work):
    """Run `work` for a request."""

    def run(log):
        token = current_request.set(RequestContext("shop-17", TRACE, {}))
        try:
            work(log)
        finally:
            current_request.reset(token)

    return run


def failure(log):
    extra = fields(status=503, cause="timed out", milliseconds=12.3456789, rules=("a/b", "c"))
    log.warning("the upstream failed", extra=extra)


@pytest.mark.promise("Logs", "Every log line has time, level and request id, as text or JSON")
def test_a_line_of_text_has_time_level_request_place_message_and_fields():
    (line,) = lines(TextLines(), in_request(failure))
    time, rest = line.split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", time)
    assert rest == (
        "WARNING shop-17 gateway.upstream: the upstream failed"
        ' status=503 cause="timed out" milliseconds=12.3457 rules=a/b,c'
    )


@pytest.mark.promise("Logs", "Every log line has time, level and request id, as text or JSON")
def test_a_line_of_json_has_them_by_name():
    (line,) = lines(JsonLines(), in_request(failure))
    values = json.loads(line)
    assert values.pop("time").endswith("Z")
    assert values == {
        "level": "warning",
        "request_id": "shop-17",
        "trace_id": TRACE,
        "logger": "gateway.upstream",
        "message": "the upstream failed",
        "status": 503,
        "cause": "timed out",
        "milliseconds": 12.3456789,
        "rules": ["a/b", "c"],
    }


def test_a_line_of_no_request_says_so():
    (text,) = lines(TextLines(), failure)
    assert " WARNING - gateway.upstream: " in text
    assert "request_id" not in json.loads(lines(JsonLines(), failure)[0])


def fail(log):
    try:
        try:
            int(SECRET)
        except ValueError as error:
            raise RuntimeError(f"{SECRET}\nsecond line") from error
    except RuntimeError:
        log.exception("failed")


@pytest.mark.promise("Logs", "One log line an event, tracebacks included")
@pytest.mark.parametrize("formatter", [TextLines(), JsonLines()])
def test_a_traceback_is_folded_into_the_line_without_the_exceptions_words(formatter):
    (line,) = lines(formatter, fail)
    assert SECRET not in line
    assert "RuntimeError at " in line
    assert "from ValueError at " in line
    assert "test_logs.py:" in line


@pytest.mark.promise("Logs", "One log line an event, tracebacks included")
@given(st.text(), st.text())
def test_every_event_is_one_line_whatever_it_says(message, value):
    def work(log):
        log.error("%s", message, extra=fields(value=value))

    (text,) = lines(TextLines(), work)
    (line,) = lines(JsonLines(), work)
    assert text.isprintable() or not any(map(_is_control, text))
    assert json.loads(line)["value"] == value


def _is_control(character):
    return ord(character) < 32 or 127 <= ord(character) < 160


@pytest.fixture
def restored_logging():
    root, ours = logging.getLogger(), logging.getLogger("waltzrl")
    before = list(root.handlers), root.level, ours.level
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])
    logging.captureWarnings(False)


@pytest.mark.usefixtures("restored_logging")
def test_levels_are_of_our_own_events_and_libraries_only_warn(capsys):
    configure_logs("json", "info")
    logging.getLogger("waltzrl.gateway").info("ours")
    logging.getLogger("waltzrl.gateway").debug("too fine")
    logging.getLogger("library.of.others").info("chatter")
    logging.getLogger("library.of.others").warning("theirs")
    said = [json.loads(line)["message"] for line in capsys.readouterr().err.splitlines()]
    assert said == ["ours", "theirs"]


def test_whoever_stops_reading_the_log_holds_up_nobody_and_is_told_what_is_missing():
    reads, writes = os.pipe()
    log, events = logging.Logger("waltzrl.gateway"), 1000
    with os.fdopen(reads, "rb") as reader, os.fdopen(writes, "w") as stream:
        handler = LogHandler(stream)
        handler.setFormatter(TextLines())
        log.addHandler(handler)
        for number in range(events):
            log.error("event %d %s", number, "x" * 200)
        kept = os.read(reader.fileno(), 1 << 20).splitlines()
        lost = events - len(kept)
        assert 0 < lost < events
        log.error("again")
        told, again = os.read(reader.fileno(), 1 << 20).decode().splitlines()
    assert f"WARNING - foundation.logs: {lost} lines were left out" in told
    assert again.endswith("again")


def test_without_standard_error_nothing_is_logged_and_nothing_fails():
    handler = LogHandler(io.StringIO())
    handler.stream = None  # as sys.stderr is where a program was started with it closed
    logging.Logger("waltzrl.gateway").addHandler(handler)
    handler.handle(logging.makeLogRecord({"msg": "unheard"}))
