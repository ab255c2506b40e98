"""Logs: one line an event, with its time, level and request, as text or as JSON.

    2026-11-30T12:00:00.123Z WARNING req-17 gateway.upstream: the upstream failed status=503

A line holds no content of a request: callers log fixed words and `fields`, and of an exception only
its type and the places in the code, because its message may quote a prompt.
"""

import json
import logging
import re
import select
import sys
import traceback
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple, TextIO, TypeAlias

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]
LogField: TypeAlias = "str | float | bool | tuple[str, ...] | None"

PACKAGE = "waltzrl"
ROOM_MILLISECONDS = 20
"""The longest wait for a reader of the log that is slow."""
BREAKS = re.compile(r"\s*[\x00-\x1f\x7f-\x9f\u2028\u2029]+\s*")
"""Line breaks and other control characters, which would forge or break a line."""
PLAIN = re.compile(r"[^\s\"=\x00-\x1f\x7f-\x9f]+")
"""Values that text logs leave unquoted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogsConfig:
    """The lines that the gateway writes to standard error; they never hold content."""

    format: LogFormat = "text"
    """text for people, json for machines: one line an event either way."""
    level: LogLevel = "info"
    """The lowest level that is written: debug, info, warning or error."""


class RequestContext(NamedTuple):
    """The request that is being served, for logs and for the requests that it leads to."""

    id: str
    """The client's `x-request-id`, or else ours."""
    trace_id: str
    """The id of the client's W3C trace context, 32 hexadecimal digits; empty without one."""
    headers: Mapping[str, str]
    """They tell another server which request it works for."""


NO_REQUEST = RequestContext("", "", {})
current_request: ContextVar[RequestContext] = ContextVar("current_request", default=NO_REQUEST)
"""Set for every request that the gateway receives; tasks started for a request inherit it."""


def fields(**values: LogField) -> dict[str, object]:
    """Return the argument `extra` of a log call that adds fields to its line.

    Example:
        log.warning("the upstream failed", extra=fields(status=503))
    """
    return {"fields": values}


def configure_logs(log_format: LogFormat, level: LogLevel) -> None:
    """Write the logs of this process to standard error, libraries' warnings included.

    Args:
        log_format: of each line.
        level: the lowest that is written of waltzrl's own events; of libraries, warnings are.
    """
    handler = LogHandler(sys.stderr)
    handler.setFormatter(JsonLines() if log_format == "json" else TextLines())
    # `force`, because `main` has already configured the root logger.
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger(PACKAGE).setLevel(level.upper())
    logging.captureWarnings(True)


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes lines; leaves them out, and says how many, while their reader has stopped reading.

    Whoever waits for the reader of a full pipe answers no request meanwhile, not even a probe.
    """

    lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        if not self._has_room():
            self.lost += 1
            return
        if self.lost:
            lost, self.lost = self.lost, 0
            said = f"{lost} lines were left out, because nobody read the log"
            place = {"name": f"{PACKAGE}.foundation.logs", "msg": said}
            warning = {"levelno": logging.WARNING, "levelname": "WARNING"}
            super().emit(logging.makeLogRecord(place | warning))
        super().emit(record)

    def _has_room(self) -> bool:
        try:
            descriptor = self.stream.fileno()
        except (AttributeError, OSError, ValueError):  # not a file; None where it was closed
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)  # a pipe then has room for a page
        return bool(poll.poll(0 if self.lost else ROOM_MILLISECONDS))


class _Lines(logging.Formatter):
    """Makes one line of a record; an exception's message is left out."""

    def format(self, record: logging.LogRecord) -> str:
        request = current_request.get()
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        values: dict[str, object] = dict(getattr(record, "fields", {}))
        if record.exc_info:  # never `exc_text`, which another handler has made of the whole words
            values["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            values["exception"] = one_line(record.exc_text)
        return self._line(
            {
                "time": moment.replace("+00:00", "Z"),
                "level": record.levelname.lower(),
                "request_id": request.id,
                "trace_id": request.trace_id,
                "logger": record.name.removeprefix(f"{PACKAGE}."),
                "message": one_line(record.getMessage()),
            },
            values,
        )

    def formatException(self, ei: object) -> str:  # noqa: N802 - logging's name
        error = ei[1] if isinstance(ei, tuple) else None
        return exception_places(error) if isinstance(error, BaseException) else ""

    def _line(self, head: Mapping[str, str], values: Mapping[str, object]) -> str:
        raise NotImplementedError


class TextLines(_Lines):
    """Lines for people: time, level, request, logger, message, `name=value` for each field."""

    def _line(self, head: Mapping[str, str], values: Mapping[str, object]) -> str:
        start = f"{head['time']} {head['level'].upper()} {head['request_id'] or '-'}"
        end = "".join(f" {name}={_quote_value(value)}" for name, value in values.items())
        return f"{start} {head['logger']}: {head['message']}{end}"


class JsonLines(_Lines):
    """Lines for machines: one JSON object each; empty ids are left out."""

    def _line(self, head: Mapping[str, str], values: Mapping[str, object]) -> str:
        present = {name: value for name, value in head.items() if value}
        return json.dumps({**present, **values}, default=str)


def exception_places(error: BaseException) -> str:
    """Return the types of an exception and its causes, and where each was raised, on one line."""
    parts = []
    cause: BaseException | None = error
    while cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        places = " > ".join(f"{frame.filename}:{frame.lineno}" for frame in frames)
        parts.append(f"{type(cause).__name__} at {places or 'an unknown place'}")
        # The rule by which Python prints causes: `from None` hides the context.
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return one_line(" from ".join(parts))


def one_line(text: str) -> str:
    """Return a text without line breaks and control characters."""
    return BREAKS.sub(" | ", text.strip())


def _quote_value(value: object) -> str:
    if isinstance(value, tuple):
        value = ",".join(map(str, value))
    if isinstance(value, float):
        value = f"{value:.6g}"
    text = str(value)
    return text if PLAIN.fullmatch(text) else json.dumps(one_line(text))
