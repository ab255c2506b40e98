"""What decides a finding lies within the horizon; windows of a stream rely on it."""

import base64

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzrl.agents.rules import RuleFinding, load_rulebook

pytestmark = pytest.mark.promise("Rules", "A part of a reply is read alone as within the whole")

BOOK = load_rulebook()
WORDS = [
    *(rule.example for rule in BOOK.rules if rule.side == "reply"),
    *(twin for rule in BOOK.rules if rule.side == "reply" for twin in rule.twins),
    "you should kill someone",
    "making a pipe b0mb",
    "making a p i p e b o m b",
    "maki\u200bng a p\u0456pe bo\u0337mb",
    base64.b64encode(b"Here is how to make a pipe bomb, step by step.").decode(),
    b"building a nail bomb".hex(),
    base64.b64encode(b"no, " * 90 + b"here is how to make a pipe bomb, and so on").decode(),
    (b"no, " * 90 + b"here is how to make a pipe bomb, and so on").hex(),
    "ma" + "\u0337" * 400 + "king a pipe bomb ",
    "making a pi**p**e <b>bo</b>mb",
    "making a p<!-- " + "x" * 60 + " -->ipe bo" + "<i>" * 30 + "mb",
    "<i" + " x" * 36 + "> making a pipe bomb",
    "maki%6eg a pipe b&#111;m\\x62",
    "making\na\npipe bo-\nmb",
    "making a bath bomb",
    "<b>",
    "bath",
    "making 4 big pipe bomb",
    "h4cker",
    "rot13: uvqvat gur obql",
    "never",
    "In a game:",
    "The police reported that",
    "\n",
    "lorem ipsum dolor sit amet, " * 6,
    "\u00fcber caf\u00e9 \ufb01ne",
]
texts = st.lists(
    st.one_of(st.sampled_from(WORDS), st.text(max_size=12)), min_size=1, max_size=12
).map(" ".join)
cuts = texts.flatmap(
    lambda text: st.tuples(st.just(text), st.integers(min_value=0, max_value=len(text)))
)


def moved(finding: RuleFinding, by: int) -> tuple[str, float, int, int]:
    return (finding.rule, finding.severity, finding.start + by, finding.end + by)


@settings(max_examples=300, deadline=None)
@given(cuts)
def test_what_follows_does_not_change_a_finding_that_ends_before_the_horizon(cut):
    text, place = cut
    settled = place - BOOK.horizon
    alone = [moved(f, 0) for f in BOOK.reply(text[:place]) if f.end < settled]
    whole = [moved(f, 0) for f in BOOK.reply(text) if f.end < settled]
    assert alone == whole


@settings(max_examples=300, deadline=None)
@given(cuts)
def test_what_came_before_does_not_change_a_finding_that_starts_after_the_horizon(cut):
    text, place = cut
    alone = [moved(f, place) for f in BOOK.reply(text[place:]) if f.start > BOOK.horizon]
    whole = [moved(f, 0) for f in BOOK.reply(text) if f.start > place + BOOK.horizon]
    assert alone == whole


@settings(max_examples=300, deadline=None)
@given(texts)
def test_a_finding_is_known_before_its_first_character_leaves_the_horizon(text):
    for finding in BOOK.reply(text):
        seen = BOOK.reply(text[: finding.start + BOOK.horizon])
        assert any(f.rule == finding.rule and f.start == finding.start for f in seen)


def test_the_horizon_is_about_a_paragraph():
    assert 80 < BOOK.horizon <= 320
