"""Telephone numbers: what looks like one, and `phonenumbers`, which knows every country's plan."""

import re
from collections.abc import Iterator, Sequence

import phonenumbers
from phonenumbers import NumberParseException, PhoneNumber, ValidationResult

from waltzrl.errors import InputError
from waltzrl.privacy.pattern import Check, DataPattern, PatternHit, stands_apart

_HINTS = "phone|telephone|tel|telefon|mobile|mobil|handy|cell|cellphone|fax|whatsapp|sms|call|dial"
_INTERNATIONAL = r"\+ ?\(?[1-9](?:[ ().\-/]{0,3}[0-9]){6,14}"
_ABROAD = r"\b00 ?[1-9][0-9]{0,2}[ ().\-/]{1,3}[0-9](?:[ ().\-/]{0,3}[0-9]){5,12}\b"
_NORTH_AMERICAN = (
    r"(?:\b1[ .-]?)?(?:\([2-9][0-9]{2}\)[ .-]{0,2}|\b[2-9][0-9]{2}[ .-])"
    r"[2-9][0-9]{2}[ .-][0-9]{4}\b"
)
_WITH_ZERO = r"(?:\(0[0-9]{0,5}\)|\b0[0-9]{1,5})[ ./-]{1,3}[0-9]{2,8}(?:[ ./-][0-9]{2,8}){0,4}\b"
_GROUPED = r"\b[1-9][0-9]{1,2}(?:[ .-][0-9]{2,4}){2,4}\b"
_HINTED = rf"(?i)\b(?:{_HINTS})\b[^0-9+(\]\n]{{0,20}}([+(]?[0-9][0-9 ().\-/]{{4,20}}[0-9])"

_GROUP_END = re.compile(rb"[0-9](?![0-9])")
_YEAR = r"(?:19|20)[0-9]{2}"
_DATE = re.compile(
    rf"(?:{_YEAR}[ ./-][0-9]{{1,2}}|[0-9]{{1,2}}[ ./-][0-9]{{1,2}}[ ./-]{_YEAR})\b".encode()
)
_FEWEST, _MOST = 7, 15
"""Digits of a number, the country's code included."""


def phone_patterns(regions: Sequence[str]) -> list[DataPattern]:
    """Return the patterns of telephone numbers.

    Args:
        regions: ISO 3166 codes of the countries whose numbers are known without `+` and the
            country's code.

    Raises:
        InputError: a region is unknown.
    """
    for region in regions:
        if region not in phonenumbers.SUPPORTED_REGIONS:
            raise InputError(
                f"no telephone numbers are known for the region {region!r}; "
                "use ISO 3166 codes such as 'US' or 'DE'"
            )
    shapes = {_INTERNATIONAL: _check([None]), _ABROAD: _check([None])}
    groups: dict[str, list[str]] = {}
    for region in regions:
        groups.setdefault(_shape(region), []).append(region)
    shapes |= {shape: _check(members) for shape, members in groups.items()}
    shapes[_HINTED] = _check([*regions], may_be_local=True)
    return [DataPattern("phone", shape, check) for shape, check in shapes.items()]


def _shape(region: str) -> str:
    """Return what a number looks like that is written for the neighbours."""
    if phonenumbers.country_code_for_region(region) == 1:
        return _NORTH_AMERICAN
    return _WITH_ZERO if phonenumbers.ndd_prefix_for_region(region, True) == "0" else _GROUPED


def _check(regions: Sequence[str | None], *, may_be_local: bool = False) -> Check:
    def check(text: bytes, start: int, end: int) -> PatternHit | None:
        if text[start - 1 : start].isalnum() or not stands_apart(text, start, start):
            return None
        if _DATE.match(text, start):
            return None
        for stop, written in _beginnings(text, start, end):
            for region in regions:
                if _is_number(written, region, may_be_local=may_be_local):
                    return PatternHit(start, stop, 0.6 if may_be_local else 0.9, "phonenumbers")
        return None

    return check


def _beginnings(text: bytes, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Yield the candidate, and then without its last groups of digits."""
    for match in reversed(list(_GROUP_END.finditer(text, start, end))):
        stop = match.end()
        written = text[start:stop].decode("latin-1")
        digits = sum(map(str.isdigit, written))
        if digits < _FEWEST:
            return
        goes_on = text[stop : stop + 1].isalnum() or (
            stop == end and not stands_apart(text, end, end)
        )
        if digits <= _MOST and not goes_on:
            yield stop, f"+{written[2:]}" if written.startswith("00") else written


def _is_number(written: str, region: str | None, *, may_be_local: bool) -> bool:
    try:
        number: PhoneNumber = phonenumbers.parse(written, region)
    except NumberParseException:
        return False
    if phonenumbers.is_valid_number(number):
        return True
    possible = phonenumbers.is_possible_number_with_reason(number)
    return may_be_local and possible == ValidationResult.IS_POSSIBLE_LOCAL_ONLY
