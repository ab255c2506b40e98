"""Data that people disguise or announce in other words, and texts that only look so."""

import pytest

from waltzrl.store.privacy.scanner import PersonalDataScanner

SCANNER = PersonalDataScanner()
pytestmark = pytest.mark.promise(
    "Personal data", "Spelt-out addresses and announced national numbers of 53 countries are found"
)


def found(text):
    return [(f.kind, text[f.start : f.end]) for f in SCANNER.find(text)]


@pytest.mark.parametrize(
    "address",
    [
        "ada.lovelace at example dot com",
        "ada AT example DOT com",
        "ada [at] example [dot] com",
        "ada(at)example(dot)com",
        "ada_lovelace[at]example.com",
        "ada {at} example {dot} org",
        "ada dot lovelace at example dot co dot uk",
        "ada@example dot com",
        "ada @ example . com",
        "ada%40example.com",
        "ada&#64;example.com",
        "ada arroba example punto es",
        "ada_at_example_dot_com",
    ],
)
def test_a_spelt_out_address_is_found(address):
    assert found(f"It is {address}, as ever") == [("email", address)]


def test_an_address_with_at_alone_is_found_where_mail_is_the_subject():
    assert found("my email is ada at example.com, thanks") == [("email", "ada at example.com")]
    assert found("it is hosted at example.com, thanks") == []


@pytest.mark.parametrize(
    "text",
    [
        "visit us at example dot com",
        "everybody needs help at some point in their lives",
        "meet me at noon . it is late",
        "stay-at-home.org has more",
        "x[at] and y.z",
        "The official mail address at example.com is known",
        "f(at)g is a product",
    ],
)
def test_what_only_looks_like_a_spelt_out_address_is_none(text):
    assert found(text) == []


@pytest.mark.parametrize(
    "address",
    ["10[.]20[.]30[.]40", "10.20.30[.]40", "10 dot 20 dot 30 dot 40", "10 . 20 . 30 . 40"],
)
def test_an_ip_address_with_spelt_out_dots_is_found(address):
    assert found(f"from {address} today") == [("ip_address", address)]


@pytest.mark.parametrize(
    ("word", "number"),
    [
        ("JMBG", "0101006500006"),
        ("NRIC", "S1234567D"),
        ("HKID", "G123456(A)"),
        ("PPS number", "6433435F"),
        ("IRD number", "49-091-850"),
        ("kennitala", "450401-3150"),
        ("asmens kodas", "33309240064"),
        ("rodn\u00e9 \u010d\u00edslo", "710319/2745"),
        ("SNILS", "112-233-445 95"),
        ("INN", "500100732259"),
        ("c\u00e9dula", "1713175071"),
        ("CUIT", "20055361682"),
        ("RUT", "12531909-2"),
        ("Medicare number", "2123 45670 1"),
        ("Taiwan ID", "A123456789"),
        ("ID number", "44051401359"),
        ("national ID", "44051401358"),
        ("Personalausweisnummer", "L01X00T471"),
    ],
)
def test_a_national_number_is_found_behind_its_word_and_in_a_key(word, number):
    assert found(f"My {word} is {number}.") == [("national_id", number)]
    key = word.lower().replace(" ", "_")
    assert found(f'{{"customer_{key}": "{number}"}}') == [("national_id", number)]


def test_a_word_behind_a_number_announces_it_too():
    assert found("111222333 is my BSN") == [("national_id", "111222333")]
    assert found("111222333 (BSN)") == [("national_id", "111222333")]
    assert found("111222333 and BSN") == []


@pytest.mark.parametrize(
    "text",
    [
        "S1234567A and A123456788 and G123456(B)",
        "ID number 44051401358",
        "the national ID card was issued 2024-05-17",
        "identity card of 2024",
    ],
)
def test_a_number_without_the_right_check_digit_is_no_national_number(text):
    assert found(text) == []


@pytest.mark.parametrize(
    ("text", "kind", "piece"),
    [
        ("my name is ada lovelace, hello", "personal_name", "ada lovelace"),
        ("My name\u2019s Ada Lovelace", "personal_name", "Ada Lovelace"),
        ("The customer's name is Ada Lovelace", "personal_name", "Ada Lovelace"),
        ('{"first_name": "Ada"}', "personal_name", "Ada"),
        ("Best regards,\nAda Lovelace", "personal_name", "Ada Lovelace"),
        ("seen by Dr. Ada Lovelace", "personal_name", "Ada Lovelace"),
        ("password hunter2x", "secret", "hunter2x"),
        ("password was changed to Summer2024!", "secret", "Summer2024"),
        ("pass: hunter2", "secret", "hunter2"),
        ("my pin is 4821", "secret", "4821"),
        ("curl -u ada:hunter2x https://h", "secret", "hunter2x"),
        (
            "api key 9f8e7d6c5b4a39281706f5e4d3c2b1a0",
            "secret",
            "9f8e7d6c5b4a39281706f5e4d3c2b1a0",
        ),
        ("card 45391488 03433654", "credit_card", "45391488 03433654"),
        ("card: 4 5 3 9 1 4 8 8 0 3 4 3 3 6 5 4", "credit_card", "4 5 3 9 1 4 8 8 0 3 4 3 3 6 5 4"),
    ],
)
def test_what_other_words_announce_is_found(text, kind, piece):
    assert found(text) == [(kind, piece)]


@pytest.mark.parametrize(
    "text",
    [
        "my name is not important, really",
        "Look at you, Mr. Law-Abiding Citizen",
        "Sincerely,\nThe Security Team",
        "M&Ms. If Carter eats",
        "password sha256 and md5",
        "pass: 12 of 15",
        "a pin is 0.5 mm wide",
        "the card has 16 digits",
        "4 5 3 9 1 4 8 8 0 3 4 3 3 6 5 4",
    ],
)
def test_ordinary_words_announce_nothing(text):
    assert found(text) == []
