"""Telephone numbers, by the numbering plans of `phonenumbers`, which knows every country's.

Its parser takes a tenth of a millisecond a number, so it is asked only where a prefix makes the
plan ambiguous; everywhere else the plan itself tells what the parser would say.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

import phonenumbers
from phonenumbers import (
    NumberParseException,
    PhoneMetadata,
    PhoneNumber,
    PhoneNumberDesc,
    ValidationResult,
)
from stdnum import isbn

from waltzrl.errors import InputError
from waltzrl.store.privacy.detection import Check, DataPattern, PatternHit, stands_apart
from waltzrl.store.privacy.hints import build_hints

_INTERNATIONAL = r"\+ ?\(?[1-9](?:[ ().\-/]{0,3}[0-9]){6,14}"
_ABROAD = r"\b00 ?[1-9][0-9]{0,2}[ ().\-/]{1,3}[0-9](?:[ ().\-/]{0,3}[0-9]){5,12}\b"
_NORTH_AMERICAN = (
    r"(?:\b1[ .-]?)?(?:\([2-9][0-9]{2}\)[ .-]{0,2}|\b[2-9][0-9]{2}[ .-])"
    r"[2-9][0-9]{2}[ .-][0-9]{4}\b"
)
_WITH_ZERO = (
    r"(?:\(0[0-9]{0,5}\)[ ./-]{0,3}|\b0[0-9]{1,5}[ ./-]{1,3})[0-9]{2,8}"
    r"(?:[ ./-][0-9]{2,8}){0,4}\b"
)
_GROUPED = r"\b[1-9][0-9]{1,2}(?:[ .-][0-9]{2,4}){2,4}\b"
_HINTED = rf"{build_hints('phone')}[^0-9+(\]\n]{{0,20}}([+(]?[0-9][0-9 ().\-/]{{4,20}}[0-9])"
_MOBILE = r"\b0[1-9][0-9]{8,10}\b"
_OWN_FORMS: Mapping[str, Sequence[str]] = {
    "BR": (r"\([1-9][0-9]\) ?9?[0-9]{4}[ -]?[0-9]{4}\b", r"\b[1-9][0-9] 9?[0-9]{4}-[0-9]{4}\b"),
    "ES": (
        r"\b(?:6[0-9]|7[1-9]|[89][0-9])[0-9](?:[ -][0-9]{3}){2}\b",
        r"\b[6-9][0-9]{2}(?:[ -][0-9]{2}){3}\b",
        r"\b[89][0-9][ -][0-9]{3}(?:[ -][0-9]{2}){2}\b",
    ),
    "IN": (_WITH_ZERO, r"\b[6-9][0-9]{4}[ -][0-9]{5}\b"),
    "IT": (_WITH_ZERO, r"\b3[0-9]{2}[ .-][0-9]{3}[ .-]?[0-9]{4}\b"),
}
"""Region -> forms of its numbers, where the general ones do not cover them."""

_PUNCTUATION = b" ().-/"
_GROUP_END = re.compile(rb"[0-9](?![0-9])")
_YEAR = r"(?:19|20)[0-9]{2}"
_NO_PHONE = re.compile(
    rf"(?:[0-9]{{3}}-[0-9]{{2}}-[0-9]{{4}}|{_YEAR}[ ./-][0-9]{{1,2}}"
    rf"|[0-9]{{1,2}}[ ./-][0-9]{{1,2}}[ ./-]{_YEAR})\b".encode()
)
"""Dates, and the form of a social security number."""
_FEWEST, _MOST = 7, 15
"""Digits of a number, including the country code."""
_FEWEST_AT_HOME = 9
"""Digits of a number without a country code, and without a word before it."""
_GROUPS_BEFORE = re.compile(rb"(?:[0-9]{4}|[A-Z]{2}[0-9]{2} [A-Z]{4})[ -]$")
"""The groups before a candidate in the middle of a card or an account."""
_REACH = 12
"""Bytes before a candidate."""


def phone_patterns(regions: Sequence[str]) -> list[DataPattern]:
    """Return the patterns of telephone numbers.

    Args:
        regions: ISO 3166 codes of the countries whose numbers are recognised without `+` and
            country code.

    Raises:
        InputError: a region is unknown.
    """
    for region in regions:
        if region not in phonenumbers.SUPPORTED_REGIONS:
            raise InputError(
                f"no telephone numbers are known for the region {region!r}; "
                "use ISO 3166 codes such as 'US' or 'DE'"
            )
    forms = {form: _make_check([None], is_telephone) for form in (_INTERNATIONAL, _ABROAD)}
    groups: dict[str, list[str]] = {}
    for region in regions:
        for form in _OWN_FORMS.get(region) or (_build_form(region),):
            groups.setdefault(form, []).append(region)
    forms |= {form: _at_home(members, is_telephone) for form, members in groups.items()}
    forms[_MOBILE] = _at_home(regions, _is_mobile)
    forms[_HINTED] = _make_check(regions, _may_be_local, score=0.6)
    return [DataPattern("phone", form, check) for form, check in forms.items()]


def _build_form(region: str) -> str:
    """Return the regex of a number as it is written within its own country."""
    if phonenumbers.country_code_for_region(region) == 1:
        return _NORTH_AMERICAN
    return _WITH_ZERO if phonenumbers.ndd_prefix_for_region(region, True) == "0" else _GROUPED


IsNumber = Callable[[str, str | None], bool]
"""Takes digits, after a `+` if they begin with a country code, and else the region."""


def _at_home(regions: Sequence[str], is_number: IsNumber) -> Check:
    """Make a check of numbers without a country code and without a word before them."""
    check = _make_check(regions, is_number, fewest=_FEWEST_AT_HOME, score=0.85)

    def check_at_home(text: bytes, start: int, end: int) -> PatternHit | None:
        if _GROUPS_BEFORE.search(text, max(start - _REACH, 0), start):
            return None
        return check(text, start, end)

    return check_at_home


def _make_check(
    regions: Sequence[str | None],
    is_number: IsNumber,
    *,
    fewest: int = _FEWEST,
    score: float = 0.9,
) -> Check:
    def check(text: bytes, start: int, end: int) -> PatternHit | None:
        if text[start - 1 : start].isalnum() or not stands_apart(text, start, start):
            return None
        if _NO_PHONE.match(text, start):
            return None
        for stop, number in _yield_beginnings(text, start, end, fewest):
            if any(is_number(number, region) for region in regions):
                return PatternHit(start, stop, score, "phonenumbers")
        return None

    return check


def _yield_beginnings(text: bytes, start: int, end: int, fewest: int) -> Iterator[tuple[int, str]]:
    """Yield end and number of the candidate, then of the candidate without its last groups."""
    for match in reversed(list(_GROUP_END.finditer(text, start, end))):
        stop = match.end()
        number = text[start:stop].translate(None, _PUNCTUATION).decode()
        digits = len(number) - number.startswith("+")
        if digits < fewest:
            return
        goes_on = text[stop : stop + 1].isalnum() or (
            stop == end and not stands_apart(text, end, end)
        )
        if digits <= _MOST and not goes_on:
            yield stop, f"+{number[2:]}" if number.startswith("00") else number


def is_telephone(number: str, region: str | None) -> bool:
    """Whether `phonenumbers` reads a valid number, dialled from the region."""
    is_international = number.startswith("+")
    decided = (
        _is_international(number[1:], region) if is_international else _is_national(number, region)
    )
    if decided is not None:
        return decided
    parsed = _parse_number(number, region)
    return parsed is not None and bool(phonenumbers.is_valid_number(parsed))


def _may_be_local(number: str, region: str | None) -> bool:
    """Whether it is a number, or one without its area code."""
    if is_telephone(number, region):
        return True
    parsed = _parse_number(number, region)
    if parsed is None:
        return False
    possible = phonenumbers.is_possible_number_with_reason(parsed)
    return bool(possible == ValidationResult.IS_POSSIBLE_LOCAL_ONLY)


def _is_mobile(number: str, region: str | None) -> bool:
    """Whether bare digits are a mobile number; numbers of books begin like some."""
    if isbn.is_valid(number) or not is_telephone(number, region):
        return False
    parsed = _parse_number(number, region)
    return parsed is not None and bool(
        phonenumbers.number_type(parsed) == phonenumbers.PhoneNumberType.MOBILE
    )


def _parse_number(number: str, region: str | None) -> PhoneNumber | None:
    try:
        parsed: PhoneNumber = phonenumbers.parse(number, region)
    except NumberParseException:
        return None
    return parsed


_NEVER = "(?!)"
_TYPES = (
    "fixed_line",
    "mobile",
    "toll_free",
    "premium_rate",
    "shared_cost",
    "voip",
    "personal_number",
    "pager",
    "uan",
    "voicemail",
)
"""Fields of the metadata with the forms of the numbers that are in use."""


def _is_international(digits: str, region: str | None) -> bool | None:
    """Tell whether digits after a `+` are a number; None if only the parser knows."""
    # No country code is the beginning of another, so the first that exists is the right one.
    for length in (1, 2, 3):
        code = int(digits[:length])
        # `int` drops leading zeros: 049 would pass for 49.
        if code in phonenumbers.COUNTRY_CODE_TO_REGION_CODE and digits[0] != "0":
            region = phonenumbers.region_code_for_country_code(code)
            return _plan(code, region).has_dialled(digits[length:])
    # In a region the parser tries again without the `+`.
    return None if region else False


def _is_national(digits: str, region: str | None) -> bool | None:
    """Tell whether digits dialled in the region are a number; None if only the parser knows."""
    if region is None:
        return False
    code = phonenumbers.country_code_for_region(region)
    plan = _plan(code, region)
    # The digits may be a foreign number after the prefix, or one of the region that begins the
    # same.
    if plan.abroad.match(digits):
        return None
    # The parser may take the beginning for the country code without its `+`.
    if digits.startswith(str(code)) and not plan.has(digits):
        return None
    return plan.has_dialled(digits)


class _Plan:
    """The numbers of a country code, as they are dialled in one of its regions."""

    def __init__(self, code: int, region: str) -> None:
        own = _load_metadata(code, region)
        self.abroad = re.compile(own.international_prefix or _NEVER)
        """The digits that are dialled before the code of another country."""
        self._trunk = re.compile(own.national_prefix_for_parsing or _NEVER)
        """The digits that are dialled within the country, and are no part of the number."""
        self._rewrites = bool(own.national_prefix_transform_rule)
        self._code = code

    def has(self, national: str) -> bool:
        """Whether it is a number, without anything before it."""
        for region, first in _list_members(self._code):
            if first is None:
                if _in_use(self._code, region).fullmatch(national):
                    return True
            elif first.match(national):
                return _in_use(self._code, region).fullmatch(national) is not None
        return False

    def has_dialled(self, national: str) -> bool | None:
        """Whether it is a number, with or without a trunk prefix; None if only the parser knows."""
        trunk = self._trunk.match(national)
        if trunk is None:
            return self.has(national)
        # As in `phonenumbers`, the transform rule applies only if its last group has matched.
        if self._rewrites and trunk[trunk.re.groups] is not None:
            return None
        if self.has(national[trunk.end() :]):
            return True
        return None if self.has(national) else False


_plan = cache(_Plan)


@cache
def _list_members(code: int) -> list[tuple[str, re.Pattern[str] | None]]:
    """Return the regions of a country code, each with the first digits that tell it from others."""
    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE[code]
    firsts = [_load_metadata(code, region).leading_digits for region in regions]
    return [
        (region, re.compile(first) if first and len(regions) > 1 else None)
        for region, first in zip(regions, firsts, strict=True)
    ]


@cache
def _in_use(code: int, region: str) -> re.Pattern[str]:
    """Return the form of all numbers that are in use in a region."""
    metadata = _load_metadata(code, region)
    types = "|".join(_form_of(getattr(metadata, name)) for name in _TYPES)
    return re.compile(f"(?={_form_of(metadata.general_desc)}$)(?:{types})")


def _load_metadata(code: int, region: str) -> PhoneMetadata:
    metadata = PhoneMetadata.metadata_for_region_or_calling_code(code, region)
    assert metadata is not None
    return metadata


def _form_of(numbers: PhoneNumberDesc | None) -> str:
    if numbers is None or not numbers.national_number_pattern:
        return _NEVER
    lengths = "|".join(f".{{{length}}}" for length in numbers.possible_length) or ".*"
    return f"(?:(?=(?:{lengths})$)(?:{numbers.national_number_pattern}))"
