"""The engine finds what each pattern finds alone, and in time that grows with the text only."""

import base64
import random
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from waltzrl.agents.rules import load_rulebook
from waltzrl.agents.rules.pattern import GAPS, RulePattern, measure_longest_match
from waltzrl.agents.rules.scan import MOST_LOOKS, OVERLAP, SECTION, PatternScanner, compile_pattern

BOOK = load_rulebook()
PATTERNS = [pattern for rule in BOOK.rules for pattern in rule.patterns]
SCANNER = PatternScanner(PATTERNS)
EXACT = [compile_pattern(pattern.regex) for pattern in PATTERNS]
NOISE = random.Random(7).randbytes(70_000)
SENTENCES = [
    text for rule in BOOK.rules for text in (rule.example, *rule.twins) if rule.side != "refusal"
]


def one_by_one(text: bytes) -> set[tuple[int, int, int]]:
    """Every match of every pattern, found without keys and without haste."""
    found = set()
    for number, regex in enumerate(EXACT):
        place = 0
        while match := regex.search(text, place):
            found.add((number, *match.span()))
            place = match.start() + 1
    return found


@pytest.mark.slow
def test_the_engine_finds_what_each_pattern_finds_alone_in_one_sentence():
    for sentence in SENTENCES:
        text = sentence.encode("latin-1", "replace")
        assert set(SCANNER.scan(text)) == one_by_one(text), sentence


@settings(max_examples=25, deadline=None)
@given(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=4), st.sampled_from(" ,\n."))
def test_the_engine_finds_what_each_pattern_finds_alone(sentences, between):
    text = between.join(sentences).encode("latin-1", "replace")
    assert set(SCANNER.scan(text)) == one_by_one(text)


@pytest.mark.parametrize("shift", range(0, 200, 40))
def test_the_engine_finds_across_sections_what_each_pattern_finds_alone(shift):
    filling = random.Random(shift).choices("etaoin shrdlu", k=2 * SECTION)
    text = "".join(filling)
    sentence = next(each for each in SENTENCES[shift:] if one_by_one(f" {each} ".encode()))
    for place in (SECTION - OVERLAP, SECTION):  # where the first section ends and the second begins
        start = place - len(sentence) + shift
        text = f"{text[:start]} {sentence} {text[start + len(sentence) + 2 :]}"
    raw = text.encode("latin-1", "replace")
    found = set(SCANNER.scan(raw))
    assert found == one_by_one(raw)
    assert found


def test_a_decoy_does_not_hide_a_match_behind_it():
    scanner = PatternScanner([RulePattern(source="how .. bomb")])
    decoys = "how " * 50 + "on and on and on it goes, " * 20
    (hit,) = scanner.scan(f"{decoys} how the bomb".encode())
    assert hit[2] == len(decoys) + len(" how the bomb")


def test_no_more_matches_of_a_pattern_are_looked_at_than_anybody_needs():
    scanner = PatternScanner([RulePattern(source="bomb")])
    assert len(list(scanner.scan(b"bomb " * 500))) == MOST_LOOKS


def test_no_pattern_is_longer_than_a_few_lines():
    for pattern in PATTERNS:
        is_of_calls = not pattern.whole_words  # calls are read whole: no stream waits for them
        assert 0 < pattern.longest <= (1200 if is_of_calls else 320), pattern.source


@pytest.mark.parametrize(
    ("regex", "most"),
    [
        ("abc", 3),
        ("a|bcd", 3),
        (r"\b(?:ab|c){2,3}\b", 6),
        (r"[^\w.!?]{1,3}x?", 4),
        (r"(?:a(?:bc)?d|e)f", 5),
        (r"\d{4}-\.", 6),
        ("it's{1,2}", 5),
    ],
)
def test_the_longest_match_is_counted(regex, most):
    assert measure_longest_match(regex) == most


def test_a_gap_takes_so_many_words_and_no_sentence_end():
    two, five = (compile_pattern(RulePattern(source=f"make{gap}bomb").regex) for gap in GAPS)
    assert two.search(b"make a nice bomb")
    assert not two.search(b"make a nice little bomb")
    assert five.search(b"make me one of those, a bomb")
    assert not five.search(b"make a. A bomb")


@pytest.mark.parametrize(
    ("source", "key"),
    [
        ("!build .. <bomb>", "build"),
        ("build (?:a )?<bomb>", "(?:bomb|grenade)"),
        (r"build \w{2,9}", "build"),
        (r"build (?:\w{1,9} ){0,2}!(?:bomb|gun)s now", "(?:bomb|gun)s"),
        (r"build (?:a )?!<bomb> (?:now|soon)", "(?:bomb|grenade)"),
    ],
)
def test_a_marked_word_is_the_key_and_else_the_last_literal_one(source, key):
    pattern = RulePattern(source=source, words={"bomb": "bomb|grenade"})
    assert pattern.key == rf"\b(?:{key})\b"
    assert "!" not in pattern.regex.replace(".!?", "")


def test_a_space_may_be_optional():
    regex = compile_pattern(RulePattern(source="key ?loggers?").regex)
    assert all(regex.search(text) for text in (b"keylogger", b"key loggers", b"a key-logger."))
    assert not regex.search(b"key. Logger")


@pytest.mark.promise(
    "Rules", "Rules read through markup, one round of escapes and line ends, in linear time"
)
@pytest.mark.parametrize(
    "text",
    [
        "how to " * 20_000,
        "[" * 70_000 + "]" * 70_000,
        "a" * 140_000,
        "QUJD" * 35_000,
        "a b c d " * 17_000,
        "z\u0300\u0327\u0315" * 35_000,
        "\u0591\u05b0\u0591\u05b0" * 35_000,
        "how to kill, " * 10_000,
        "k%69ll " * 20_000,
        "<b>k</b>ill " * 11_000,
        "&#107;ill\n" * 14_000,
        "k_ill_" * 23_000,
        "<b" * 70_000,
        base64.b64encode(NOISE).decode(),
        NOISE.hex(),
        NOISE.decode("latin-1"),
        "\n".join(base64.b64encode(NOISE[i : i + 57]).decode() for i in range(0, 70_000, 57)),
    ],
    ids=lambda text: repr(text[:12]),
)
def test_hostile_text_takes_no_longer_than_its_length_allows(text):
    # 140,000 characters; ordinary text takes about 3 ms on a slow machine, so this is generous.
    start = time.process_time()
    BOOK.request(text)
    BOOK.reply(text)
    assert time.process_time() - start < 0.5
