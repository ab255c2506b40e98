"""What is decided without the slow readers of libraries is what these would decide."""

import random
import string

import phonenumbers
import pytest
from hypothesis import given
from hypothesis import strategies as st
from phonenumbers import NumberParseException, PhoneNumberFormat, PhoneNumberType
from stdnum import iban, luhn

from waltzrl.store.privacy.scanner import PersonalDataScanner
from waltzrl.store.privacy.telephones import is_telephone

REGIONS = sorted(phonenumbers.SUPPORTED_REGIONS)
TYPES = (PhoneNumberType.FIXED_LINE, PhoneNumberType.MOBILE, PhoneNumberType.TOLL_FREE)
DIGITS = str.maketrans("", "", " ()-./")
ACCOUNTS = ("DE89370400440532013000", "GB82WEST12345698765432", "NO9386011117947")
SCANNER = PersonalDataScanner()


def parser_accepts(written, region):
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(written, region))
    except NumberParseException:
        return False


def published(region):
    """Return example numbers of a region, as they are written there and elsewhere."""
    numbers = [phonenumbers.example_number_for_type(region, kind) for kind in TYPES]
    return [
        phonenumbers.format_number(number, form)
        for number in numbers
        if number is not None
        for form in (PhoneNumberFormat.NATIONAL, PhoneNumberFormat.INTERNATIONAL)
    ]


@pytest.mark.promise(
    "Personal data",
    "Telephones, accounts and cards are decided without the slow readers of libraries, and as "
    "these would decide",
)
@pytest.mark.parametrize("initial", sorted({region[0] for region in REGIONS}))
def test_a_telephone_of_any_country_is_one_to_us_if_it_is_one_to_the_parser(initial):
    draw = random.Random(initial)
    for region in (region for region in REGIONS if region[0] == initial):
        for written in published(region):
            other = draw.choice(REGIONS)
            place = draw.randrange(1, len(written))
            mistyped = written[:place] + draw.choice(string.digits) + written[place + 1 :]
            longer = written[:place] + draw.choice(string.digits) + written[place:]
            for text in (written, mistyped, longer, f"0{written.lstrip('+')}"):
                for place in (region, other):
                    expected = parser_accepts(text, place)
                    assert is_telephone(text.translate(DIGITS), place) == expected, (text, place)


@pytest.mark.promise(
    "Personal data",
    "Telephones, accounts and cards are decided without the slow readers of libraries, and as "
    "these would decide",
)
@given(st.text(string.digits, min_size=7, max_size=15), st.sampled_from(REGIONS))
def test_any_digits_are_a_telephone_if_they_are_one_to_the_parser(digits, region):
    code = str(phonenumbers.country_code_for_region(region))
    for number in (digits, f"+{digits}", f"+{code}{digits}"[:16], f"{code}{digits}"[:15]):
        assert is_telephone(number, region) == parser_accepts(number, region)
    assert is_telephone(f"+{digits}", None) == parser_accepts(f"+{digits}", None)


@pytest.mark.promise(
    "Personal data",
    "Telephones, accounts and cards are decided without the slow readers of libraries, and as "
    "these would decide",
)
@given(st.sampled_from(ACCOUNTS), st.integers(4, 14), st.sampled_from(string.digits + "AW"))
def test_an_account_is_one_if_it_is_one_to_stdnum(account, place, character):
    number = account[:place] + character + account[place + 1 :]
    expected = [(0, len(number))] if iban.is_valid(number, check_country=False) else []
    found = SCANNER.find(number)
    assert [(d.start, d.end) for d in found if d.kind == "iban"] == expected


@given(st.text(string.digits, min_size=12, max_size=12))
def test_a_card_is_one_if_its_last_digit_is_right_to_stdnum(digits):
    found = SCANNER.find(f"4539{digits}")
    assert ("credit_card" in {d.kind for d in found}) == luhn.is_valid(f"4539{digits}")
