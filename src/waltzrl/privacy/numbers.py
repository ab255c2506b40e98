"""Numbers that belong to a person: national identifiers and telephone numbers.

National identifiers are verified by python-stdnum. Those whose form and check digits make false
alarms rare are found anywhere; those that look like any other number only after a word that
announces them. Telephone numbers are verified by `phonenumbers`, which knows the numbering plan of
every country.
"""

import pkgutil
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import phonenumbers
from phonenumbers import NumberParseException, PhoneNumber, ValidationResult
from stdnum import isbn
from stdnum.us import ssn

from waltzrl.errors import InputError
from waltzrl.privacy.detection import Check, DataPattern, PatternHit, checked, stands_apart
from waltzrl.privacy.hints import hints

_SSN = r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b"
_SSN_HINTS = "ssn|social security"
_SSN_ANNOUNCED = r"[0-9]{3}[ .-]?[0-9]{2}[ .-]?[0-9]{4}"

_UNANNOUNCED: Mapping[str, str] = {
    "ar.cuit": r"[0-9]{2}-[0-9]{8}-[0-9]",
    "be.nn": r"[0-9]{2}\.[0-9]{2}\.[0-9]{2}-[0-9]{3}\.[0-9]{2}",
    "br.cpf": r"[0-9]{3}\.[0-9]{3}\.[0-9]{3}-[0-9]{2}",
    "ch.ssn": r"756\.[0-9]{4}\.[0-9]{4}\.[0-9]{2}",
    "cl.rut": r"[0-9]{1,2}\.[0-9]{3}\.[0-9]{3}-[0-9Kk]",
    "cn.ric": r"[1-8][0-9]{5}(?:19|20)[0-9]{9}[0-9Xx]",
    "es.dni": r"[0-9]{8}-?[A-HJ-NP-TV-Z]",
    "es.nie": r"[XYZ]-?[0-9]{7}-?[A-HJ-NP-TV-Z]",
    "fi.hetu": r"[0-3][0-9][01][0-9]{3}[-+A-FU-Y][0-9]{3}[0-9A-FHJ-NPR-Y]",
    "fr.nir": (
        r"[12] ?[0-9]{2} ?(?:0[1-9]|1[0-2]|20|3[0-9]|4[0-2]|[5-9][0-9]) ?[0-9][0-9AB] ?"
        r"[0-9]{3} ?[0-9]{3} ?[0-9]{2}"
    ),
    "it.codicefiscale": r"[A-Za-z]{6}[0-9]{2}[A-Za-z][0-9]{2}[A-Za-z][0-9]{3}[A-Za-z]",
    "kr.rrn": r"[0-9]{2}[01][0-9][0-3][0-9]-[1-8][0-9]{6}",
    "mx.curp": r"[A-Z]{4}[0-9]{6}[HM][A-Z]{5}[0-9A-Z][0-9]",
    "us.itin": r"9[0-9]{2}-[5-9][0-9]-[0-9]{4}",
}
"""Module in stdnum -> form of the number."""

_ANNOUNCED: Mapping[str, tuple[str, str]] = {
    "au.tfn": ("tfn|tax file", r"[0-9]{3} ?[0-9]{3} ?[0-9]{2,3}"),
    "be.nn": ("rijksregister|registre national|nrn", r"[0-9]{11}"),
    "bg.egn": ("egn", r"[0-9]{10}"),
    "br.cpf": ("cpf", r"[0-9]{11}"),
    "ca.sin": ("sin|social insurance", r"[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{3}"),
    "ch.ssn": ("ahv|avs|oasi", r"756[0-9]{10}"),
    "cz.rc": ("rodne|rodn. c.slo|birth number", r"[0-9]{6}/?[0-9]{3,4}"),
    "de.idnr": ("steuer|steuer-?id|idnr|tax id|tin", r"[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}"),
    "dk.cpr": ("cpr", r"[0-9]{6}[- ]?[0-9]{4}"),
    "ee.ik": ("isikukood", r"[0-9]{11}"),
    "gb.nhs": ("nhs", r"[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{4}"),
    "gr.amka": ("amka", r"[0-9]{11}"),
    "hr.oib": ("oib", r"[0-9]{11}"),
    "id.nik": ("nik|ktp", r"[0-9]{16}"),
    "il.idnr": ("israeli id|teudat zehut", r"[0-9]{9}"),
    "in_.pan": ("pan|permanent account", r"[A-Z]{5}[0-9]{4}[A-Z]"),
    "nl.bsn": ("bsn|burgerservicenummer|sofi", r"[0-9]{4}[. ]?[0-9]{2}[. ]?[0-9]{3}"),
    "no.fodselsnummer": ("f.dselsnummer|fnr", r"[0-9]{6} ?[0-9]{5}"),
    "pl.pesel": ("pesel", r"[0-9]{11}"),
    "pt.nif": ("nif|contribuinte", r"[0-9]{3} ?[0-9]{3} ?[0-9]{3}"),
    "ro.cnp": ("cnp|cod numeric", r"[0-9]{13}"),
    "se.personnummer": ("personnummer|personal number", r"(?:[0-9]{2})?[0-9]{6}[-+]?[0-9]{4}"),
    "th.pin": ("thai id|citizen id", r"[0-9]-?[0-9]{4}-?[0-9]{5}-?[0-9]{2}-?[0-9]"),
    "tr.tckimlik": ("kimlik|tckn|tc no", r"[0-9]{11}"),
    "us.itin": ("itin", r"9[0-9]{8}"),
    "za.idnr": ("south african id|sa id|id number|identity number", r"[0-9]{13}"),
}
"""Module in stdnum -> the words that announce the number, and its form."""

_WITHOUT_A_WORD: Mapping[str, Mapping[str, str]] = {
    "DE": {"de.idnr": r"[0-9]{2} [0-9]{3} [0-9]{3} [0-9]{3}"},
    "IN": {"in_.pan": r"[A-Z]{5}[0-9]{4}[A-Z]"},
}
"""Region -> module in stdnum -> form of a number that is found anywhere when asked for."""

_INSURANCE_HINTS = "nino|ni|ni number|national insurance"
_INSURANCE = r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]"
_INSURANCE_ANNOUNCED = r"[A-Z]{2} ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-Z]"
"""British National Insurance numbers have no check digit and are not in stdnum."""


_AADHAAR = r"[2-9][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{4}"
_MY_NUMBER = r"[0-9]{4}[ -]?[0-9]{4}[ -]?[0-9]{4}"


def national_patterns(regions: Sequence[str]) -> list[DataPattern]:
    """Return the patterns of the US social security number and of all other national numbers.

    Args:
        regions: whose numbers are also found without a word before them.
    """
    announced_ssn, ssn_key = _announced(_SSN_HINTS, _SSN_ANNOUNCED)
    patterns = [
        DataPattern("ssn", _SSN, _social_security),
        DataPattern("ssn", announced_ssn, _social_security, ssn_key),
    ]
    for name, form in _UNANNOUNCED.items():
        patterns.append(DataPattern("national_id", rf"\b{form}\b", _stdnum_check(name)))
    for name, (words, form) in _ANNOUNCED.items():
        regex, key = _announced(words, form)
        patterns.append(DataPattern("national_id", regex, _stdnum_check(name), key))
    regex, key = _announced(_INSURANCE_HINTS, _INSURANCE_ANNOUNCED)
    is_insurance = re.compile(_INSURANCE_ANNOUNCED).fullmatch
    insurance = checked("pattern", lambda number: is_insurance(number) is not None, 0.8)
    patterns.append(DataPattern("national_id", regex, insurance, key))
    if "GB" in regions:
        patterns.append(DataPattern("national_id", rf"\b{_INSURANCE}\b", insurance))
    for region in regions:
        for name, form in _WITHOUT_A_WORD.get(region, {}).items():
            patterns.append(DataPattern("national_id", rf"\b{form}\b", _stdnum_check(name)))
    my_number = checked("my_number", _is_my_number)
    for what, form, check in (
        ("my number", _MY_NUMBER, my_number),
        ("aadhaar", _AADHAAR, _stdnum_check("in_.aadhaar")),
    ):
        key = hints(what)
        regex = rf"{key}[^0-9\]\n]{{0,24}}\b({form})\b"
        patterns.append(DataPattern("national_id", regex, check, key))
    return patterns


def _is_my_number(number: str) -> bool:
    """Check the last digit of a Japanese individual number (Ordinance 85 of 2014, article 5)."""
    *digits, check = (int(digit) for digit in number if digit.isdigit())
    weights = (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)
    remainder = sum(d * w for d, w in zip(digits, weights, strict=True)) % 11
    return check == (0 if remainder <= 1 else 11 - remainder)


def _announced(words: str, form: str) -> tuple[str, str]:
    """Return the regex of a number after one of the words, and the key of that regex."""
    key = rf"(?i:\b(?:{words})\b)"
    return rf"{key}[^0-9\]\n]{{0,24}}\b({form})\b", key


def _stdnum_check(name: str) -> Check:
    is_valid: Callable[[str], bool] = pkgutil.resolve_name(f"stdnum.{name}:is_valid")
    return checked(f"stdnum.{name}", is_valid)


def _social_security(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a US social security number in a range that is in use, with any separators."""
    number = re.sub(rb"\D", b"", text[start:end]).decode()
    if ssn.is_valid(number) and stands_apart(text, start, end):
        return PatternHit(start, end, 0.9, "stdnum.us.ssn")
    return None


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
_HINTED = rf"{hints('phone')}[^0-9+(\]\n]{{0,20}}([+(]?[0-9][0-9 ().\-/]{{4,20}}[0-9])"
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
"""Before a candidate in the middle of a card or an account."""
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
    forms = {form: _check([None], _is_valid) for form in (_INTERNATIONAL, _ABROAD)}
    groups: dict[str, list[str]] = {}
    for region in regions:
        for form in _OWN_FORMS.get(region) or (_form(region),):
            groups.setdefault(form, []).append(region)
    forms |= {form: _at_home(members, _is_valid) for form, members in groups.items()}
    forms[_MOBILE] = _at_home(regions, _is_mobile)
    forms[_HINTED] = _check(regions, _may_be_local, score=0.6)
    return [DataPattern("phone", form, check) for form, check in forms.items()]


def _form(region: str) -> str:
    """Return the regex of a number as it is written within its own country."""
    if phonenumbers.country_code_for_region(region) == 1:
        return _NORTH_AMERICAN
    return _WITH_ZERO if phonenumbers.ndd_prefix_for_region(region, True) == "0" else _GROUPED


IsNumber = Callable[[str, str | None], bool]
"""Takes a number as it is written and a region, None for a number with a country code."""


def _at_home(regions: Sequence[str], is_number: IsNumber) -> Check:
    """Make a check of numbers without a country code and without a word before them."""
    check = _check(regions, is_number, fewest=_FEWEST_AT_HOME, score=0.85)

    def check_at_home(text: bytes, start: int, end: int) -> PatternHit | None:
        if _GROUPS_BEFORE.search(text, max(start - _REACH, 0), start):
            return None
        return check(text, start, end)

    return check_at_home


def _check(
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
        for stop, written in _beginnings(text, start, end, fewest):
            if any(is_number(written, region) for region in regions):
                return PatternHit(start, stop, score, "phonenumbers")
        return None

    return check


def _beginnings(text: bytes, start: int, end: int, fewest: int) -> Iterator[tuple[int, str]]:
    """Yield end and text of the candidate, then of the candidate without its last groups."""
    for match in reversed(list(_GROUP_END.finditer(text, start, end))):
        stop = match.end()
        written = text[start:stop].decode("latin-1")
        digits = sum(map(str.isdigit, written))
        if digits < fewest:
            return
        goes_on = text[stop : stop + 1].isalnum() or (
            stop == end and not stands_apart(text, end, end)
        )
        if digits <= _MOST and not goes_on:
            yield stop, f"+{written[2:]}" if written.startswith("00") else written


def _parsed(written: str, region: str | None) -> PhoneNumber | None:
    try:
        number: PhoneNumber = phonenumbers.parse(written, region)
    except NumberParseException:
        return None
    return number


def _is_valid(written: str, region: str | None) -> bool:
    number = _parsed(written, region)
    return number is not None and bool(phonenumbers.is_valid_number(number))


def _may_be_local(written: str, region: str | None) -> bool:
    """Whether it is a number, or one without its area code."""
    number = _parsed(written, region)
    if number is None or phonenumbers.is_valid_number(number):
        return number is not None
    possible = phonenumbers.is_possible_number_with_reason(number)
    return bool(possible == ValidationResult.IS_POSSIBLE_LOCAL_ONLY)


def _is_mobile(written: str, region: str | None) -> bool:
    """Whether bare digits are a mobile number; numbers of books begin like some."""
    number = None if isbn.is_valid(written) else _parsed(written, region)
    return number is not None and bool(
        phonenumbers.number_type(number) == phonenumbers.PhoneNumberType.MOBILE
    )
