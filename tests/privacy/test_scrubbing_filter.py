import io
import logging

import pytest

from waltzrl.privacy.logs import ScrubbingFilter
from waltzrl.privacy.redaction import RedactionRules
from waltzrl.privacy.scanner import PersonalDataScanner


@pytest.fixture
def logger():
    """A logger whose handler scrubs; its stream is `logger.stream`."""
    logger = logging.Logger("scrubbed")
    logger.stream = io.StringIO()
    handler = logging.StreamHandler(logger.stream)
    handler.addFilter(ScrubbingFilter(RedactionRules({}, PersonalDataScanner()).scrub))
    logger.addHandler(handler)
    return logger


def test_the_formatted_message_is_scrubbed(logger):
    logger.info("mail of %s: %s, %d%%", "ada", "ada@example.com", 5)
    assert logger.stream.getvalue() == "mail of ada: [REDACTED:email], 5%\n"


def test_a_piece_that_only_the_arguments_complete_is_scrubbed(logger):
    logger.info("%s@%s", "ada", "example.com")
    assert logger.stream.getvalue() == "[REDACTED:email]\n"


def test_the_text_of_an_exception_and_the_stack_are_scrubbed(logger):
    try:
        int("ada@example.com")
    except ValueError:
        logger.exception("failed", stack_info=True)
    said = logger.stream.getvalue()
    assert "ValueError: invalid literal for int() with base 10: '[REDACTED:email]'" in said
    assert "Stack (most recent call last)" in said
    assert "ada@" not in said


def test_a_call_whose_arguments_do_not_fit_is_logged_all_the_same(logger):
    logger.info("%d items", "ada@example.com")
    assert logger.stream.getvalue() == "%d items ('[REDACTED:email]',)\n"
