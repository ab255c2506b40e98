import io
import logging
import re
from dataclasses import replace

import pytest

from waltzrl.records import (
    Collaboration,
    Feedback,
    Message,
    Prompt,
    Reply,
    Round,
    Tokens,
    ToolCall,
    Usage,
)
from waltzrl.store.privacy.redaction import RedactionRules
from waltzrl.store.privacy.scanner import PersonalDataScanner
from waltzrl.store.privacy.scrubbing import ScrubbingFilter, scrub_collaboration

ADDRESS = "ada@example.com"
CALL = ToolCall(id="call-1", name="send", arguments=f'{{"to": "{ADDRESS}"}}')


def scrub(text):
    return re.sub(r"\w+@example\.com", "[REDACTED:email]", text)


def said_everywhere(text):
    tokens = Tokens(prompt_ids=(1,), ids=(2,), logprobs=(0,))
    reply = Reply(text=text, reasoning=text, calls=(CALL,), tokens=tokens)
    feedback = Feedback(unsafe=True, overrefuse=False, text=text, reasoning=text, reply=reply)
    prompt = Prompt(
        id="req-1",
        messages=(Message(role="system", content=text), Message(role="user", content=text)),
        category="work",
        source="chat",
        answer=text,
    )
    return Collaboration(
        prompt=prompt, draft=reply, rounds=(Round(feedback=feedback, revision=reply),)
    )


@pytest.mark.promise("Legal duties", "GDPR 5(1)(c): data minimisation")
def test_no_text_of_a_collaboration_keeps_an_address_and_its_names_stay():
    scrubbed = scrub_collaboration(said_everywhere(f"Write to {ADDRESS}."), scrub)
    assert "@example" not in repr(scrubbed)
    assert (scrubbed.prompt.id, scrubbed.prompt.category) == ("req-1", "work")
    assert scrubbed.draft.calls == (replace(CALL, arguments='{"to": "[REDACTED:email]"}'),)
    assert scrubbed.rounds[0].feedback.unsafe is True
    assert scrubbed.prompt.messages[1].content == "Write to [REDACTED:email]."


def test_tokens_spell_the_texts_and_are_not_kept():
    scrubbed = scrub_collaboration(said_everywhere("Hello."), scrub)
    assert [reply.tokens for reply in scrubbed.replies] == [None, None]


@pytest.mark.promise("Personal data", "No text of a client comes into a log as the name of a model")
def test_the_name_of_a_model_is_text_of_the_client_and_has_an_end():
    usage = Usage(input_tokens=1, output_tokens=2, model=f"I am {ADDRESS} {'m' * 1000}")
    bare = Collaboration(
        prompt=Prompt(id="r", messages=(Message(role="user", content="Hi"),)),
        draft=Reply(text="Fine.", usage=usage),
    )
    kept = scrub_collaboration(bare, scrub).draft.usage
    assert kept == replace(usage, model=("I am [REDACTED:email] " + "m" * 1000)[:200])


def test_without_rounds_and_answer_there_is_less_to_scrub():
    bare = Collaboration(
        prompt=Prompt(id="r", messages=(Message(role="user", content=ADDRESS),)),
        draft=Reply(text="Fine."),
    )
    scrubbed = scrub_collaboration(bare, scrub)
    assert scrubbed.prompt.messages[0].content == "[REDACTED:email]"
    assert scrubbed.draft == bare.draft


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
