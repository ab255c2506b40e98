"""Cards and accounts however they are written, also split over the parts of one message."""

import pytest

from waltzrl.gateway.wire.fields import text_of
from waltzrl.store.privacy.redaction import RedactionRules
from waltzrl.store.privacy.scanner import PersonalDataScanner

SCANNER = PersonalDataScanner(["credit_card", "iban"])
CARD, ACCOUNT = "4539148803433654", "DE89370400440532013000"


def found(text):
    return [text[f.start : f.end] for f in SCANNER.find(text)]


@pytest.mark.promise(
    "Personal data",
    "Cards and accounts are found with any joint, and split over the parts of one message",
)
@pytest.mark.parametrize("number", [CARD, ACCOUNT])
@pytest.mark.parametrize("joint", ["  ", "\t", "\n", "\r\n", "/", " / ", ".", " - ", "\u00a0 "])
def test_the_groups_of_a_number_may_stand_apart(number, joint):
    written = joint.join(number[n : n + 4] for n in range(0, len(number), 4))
    assert found(f"it is {written}, thanks") == [written]


@pytest.mark.promise(
    "Personal data",
    "Cards and accounts are found with any joint, and split over the parts of one message",
)
@pytest.mark.parametrize("number", [CARD, ACCOUNT, "4539 1488 0343 3654"])
def test_a_number_split_over_two_parts_of_a_message_is_redacted_wherever_it_is_split(number):
    scrub = RedactionRules({}, SCANNER).scrub
    for place in range(1, len(number)):
        texts = ("I pay with " + number[:place], number[place:] + " today")
        content = text_of([{"type": "text", "text": text} for text in texts], "content")
        assert scrub(content).startswith("I pay with [REDACTED:"), content
        assert scrub(content).endswith("] today")


@pytest.mark.promise(
    "Personal data",
    "Cards and accounts are found with any joint, and split over the parts of one message",
)
def test_numbers_in_the_cells_of_a_table_are_no_card():
    groups = [CARD[n : n + 4] for n in range(0, 16, 4)]
    assert found("\n".join(["1021", *groups, "1022"])) == []
    assert found("\t".join(["1021", "3311", *groups, *groups])) == []
    assert found("20261105\n" + CARD[:8] + "\n" + CARD[8:]) == []
