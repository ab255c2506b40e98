"""Keeps personal data out of logs."""

import logging
from collections.abc import Callable


class ScrubbingFilter(logging.Filter):
    """Scrubs what a record says, its exception and its stack included; put it on a handler.

    A filter of a logger sees only that logger's own records, one of a handler sees all it writes.
    """

    def __init__(self, scrub: Callable[[str], str]) -> None:
        """Take the function that scrubs, such as `Policy.scrub`."""
        super().__init__()
        self._scrub = scrub
        self._formatter = logging.Formatter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Scrub the record in place, and let it pass."""
        record.msg = self._scrub(_said(record))
        record.args = None
        if record.exc_info:
            record.exc_text = self._formatter.formatException(record.exc_info)
            record.exc_info = None
        if record.exc_text:
            record.exc_text = self._scrub(record.exc_text)
        if record.stack_info:
            record.stack_info = self._scrub(record.stack_info)
        return True


def _said(record: logging.LogRecord) -> str:
    """Return the message, also of a call whose arguments do not fit: it must not raise here."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, LookupError):
        return f"{record.msg} {record.args}"
