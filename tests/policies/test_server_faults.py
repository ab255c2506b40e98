"""What servers say about their failures."""

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from waltzrl.policies.server_faults import (
    LONGEST_WAIT,
    ReportedError,
    check_reported,
    read_fault,
    read_retry_after,
    read_wait,
)

WORDS = {"choices": [{"message": {"content": "Hi."}}]}


def reported(body, event=""):
    with pytest.raises(ReportedError) as raised:
        check_reported(body, event)
    return raised.value.fault


@pytest.mark.parametrize(
    ("error", "status"),
    [
        ({"code": 429}, 429),
        ({"code": 429.0}, 429),
        ({"code": "429"}, 429),
        ({"status_code": 503}, 503),
        ({"code": 404, "status": "NOT_FOUND"}, 404),
        ({"status": "RESOURCE_EXHAUSTED"}, 429),
        ({"code": "rate_limit_exceeded", "type": "requests"}, 429),
        ({"type": "rate_limit_error"}, 429),
        ({"type": "RateLimitError"}, 429),
        ({"code": "insufficient_quota"}, 429),
        ({"type": "overloaded_error"}, 503),
        ({"type": "BadRequestError"}, 400),
        ({"code": "context_length_exceeded"}, 400),
        ({"type": "invalid_request_error", "code": None}, 400),
        ({"type": "authentication_error"}, 401),
        ({"type": "permission_error"}, 403),
        ({"type": "InternalServerError"}, 500),
        ({"code": "server_error"}, 500),
        ({"code": 200}, None),
        ({"code": 4290}, None),
        ({"code": "oops"}, None),
        ({"code": None}, None),
    ],
)
def test_a_status_is_named_by_a_number_or_by_a_word(error, status):
    assert reported({"error": {"message": "m", **error}}).status == status


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        ({"code": "InvalidParameter", "message": "too long"}, "too long", 400),
        ({"code": "DataInspectionFailed", "message": "refused"}, "refused", None),
        ({"base_resp": {"status_code": 1008, "status_msg": "no balance"}}, "no balance", None),
    ],
)
def test_a_failure_with_a_code_of_the_servers_own_is_told(body, message, status):
    for answer in (body, {"choices": None, **body}):
        fault = reported(answer)
        assert (fault.message, fault.status) == (message, status)


@pytest.mark.parametrize(
    "body",
    [
        {"code": 0, "message": "ok"},
        {"code": 200, "message": "ok"},
        {"status": "processing", "message": "queued"},
        {"type": "heartbeat", "message": "on it"},
        {**WORDS, "base_resp": {"status_code": 0, "status_msg": "success"}},
    ],
)
def test_an_answer_with_a_message_is_no_failure_without_a_code(body):
    check_reported(body)


def test_googles_wait_is_read():
    info = {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "12.5s"}
    error = {"error": {"code": 429, "message": "m", "details": [{"@type": "x"}, info]}}
    assert read_fault(json.dumps([error]).encode()).retry_after_seconds == 12.5
    error = {"error": {"code": 429, "message": "m", "details": ["soon"]}}
    assert read_fault(json.dumps(error).encode()).retry_after_seconds is None


@pytest.mark.parametrize("event", ["", "event: error\n"])
def test_a_failure_may_be_the_event_of_a_stream(event):
    labels = {"type": "requests", "code": "rate_limited"}
    error = {"error": {"message": "slow down", **labels}}
    fault = read_fault(f"{event}data: {json.dumps(error)}\n\n".encode())
    assert (fault.message, fault.labels) == ("slow down", labels)
    assert read_fault(b"data: none\n\n").message == "data: none"


@pytest.mark.parametrize(
    ("body", "message", "status"),
    [
        ({"error": {"message": "slow down", "code": 429}}, "slow down", 429),
        ({"error": "slow down"}, "slow down", None),
        ({"error": "slow down", "code": 429}, "slow down", 429),
        ([{"error": {"message": "slow down", "code": 429}}], "slow down", 429),
        ({"object": "error", "message": "slow down", "code": 429}, "slow down", 429),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "no message", 503),
        ({"message": "slow down", "code": 429}, "slow down", 429),
        ({"detail": "Not Found"}, "Not Found", None),
        ({"error": {"message": "half \ud83d", "code": 400}}, "half \ufffd", 400),
        ({**WORDS, "error": {"message": "slow down"}}, "slow down", None),
        (
            {"choices": [{**WORDS["choices"][0], "error": {"message": "gone", "code": 502}}]},
            "gone",
            502,
        ),
    ],
)
def test_an_error_in_an_answer_of_200_is_found(body, message, status):
    fault = reported(body)
    assert (fault.message, fault.status) == (message, status)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"errors": [{"code": 5006, "message": "no room"}], "success": False}, "no room"),
        ({"errors": ["no room"]}, '["no room"]'),
        ({"code": 1210, "msg": "no room", "success": False}, "no room"),
        ({"error_code": 336003, "error_msg": "no room"}, "no room"),
        ({"Message": "no room"}, "no room"),
        ({"errorMessage": "no room"}, "no room"),
        ({"error": {"error": {"message": "no room"}}}, "no room"),
        ({"error": [{"message": "no room"}]}, "no room"),
        ([], "[]"),
    ],
)
def test_a_reason_is_found_under_whichever_name(body, message):
    assert read_fault(json.dumps(body).encode()).message == message


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"code": 500, "msg": "no route", "success": False}, 500),
        ({"error_code": 110, "error_msg": "no route", "id": "1"}, None),
        ({"success": False, "errors": [{"code": 7, "message": "no route"}], "result": None}, None),
    ],
)
def test_a_failure_of_200_is_found_under_whichever_name(body, status):
    fault = reported(body)
    assert (fault.message, fault.status) == ("no route", status)
    check_reported({"success": True, "errors": [], "result": {}, "msg": "ok", "code": 0})


@pytest.mark.parametrize(
    "raw",
    [
        "no room",
        '{"error": {"message": "no room"}}',
        {"error": {"message": "no room"}},
        '{"detail": "no room"}',
    ],
)
def test_a_router_tells_the_words_of_the_server_behind_it(raw):
    error = {"message": "Provider returned error", "code": 400, "metadata": {"raw": raw}}
    fault = read_fault(json.dumps({"error": error}).encode())
    assert (fault.message, fault.status) == ("Provider returned error: no room", 400)
    for nothing in ({}, {"raw": None}, {"raw": "Provider returned error"}, "none"):
        body = {"error": {**error, "metadata": nothing}}
        assert read_fault(json.dumps(body).encode()).message == "Provider returned error"


def test_an_event_that_is_called_error_is_one():
    assert reported({"message": "gone"}, "error").message == "gone"


@pytest.mark.parametrize(
    "error",
    [None, "", {}, [], False, 0, {"message": None, "code": None}, {"message": "", "code": 0}],
)
def test_an_error_that_says_nothing_is_none(error):
    check_reported({**WORDS, "error": error})
    check_reported({"choices": [], "error": error})
    check_reported({"choices": [{"delta": {}, "error": error}]})


@pytest.mark.parametrize(
    "body",
    [WORDS, {"choices": []}, {"usage": {}}, {"type": "ping"}, {"message": "hm"}, [], 1, None],
)
def test_what_reports_no_failure_is_left_alone(body):
    check_reported(body)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        ({"retry_after": 7}, 7.0),
        ({"retry_after_seconds": 2.5}, 2.5),
        ({"metadata": {"headers": {"Retry-After": "7"}}}, 7.0),
        ({"retry_after": "soon"}, None),
        ({"retry_after": -1}, None),
        ({}, None),
    ],
)
def test_how_long_to_wait_is_read_from_the_report(error, seconds):
    assert reported({"error": {"message": "m", **error}}).retry_after_seconds == seconds


def test_the_labels_of_an_error_are_kept_as_texts():
    body = {"error": {"message": "m", "type": "t", "code": 5, "param": None}}
    assert read_fault(json.dumps(body).encode()).labels == {"type": "t", "code": "5"}


def test_retry_after_is_a_number_or_a_date():
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    assert 95 < read_retry_after(soon) <= 100
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0
    assert read_retry_after("2") == 2
    assert read_retry_after("Fri, 31 Dec 9999 23:59:59 GMT") == LONGEST_WAIT
    huge = "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"
    for neither in ("later", "", "-3", "nan", "9" * 40, huge):
        assert read_retry_after(neither) is None


def test_a_wait_may_be_in_milliseconds():
    assert read_wait({"retry-after-ms": "2500", "retry-after": "3"}) == 2.5
    assert read_wait({"x-ms-retry-after-ms": "500"}) == 0.5
    assert read_wait({"retry-after-ms": "soon", "retry-after": "3"}) == 3
    assert read_wait({}) is None
