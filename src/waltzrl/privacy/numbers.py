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
from stdnum.us import ssn

from waltzrl.errors import InputError
from waltzrl.privacy.detection import Check, DataPattern, PatternHit, checked, stands_apart

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
    "in_.aadhaar": ("aadhaar|aadhar|uidai", r"[2-9][0-9]{3}[ -]?[0-9]{4}[ -]?[0-9]{4}"),
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

_INSURANCE_HINTS = "nino|ni|ni number|national insurance"
_INSURANCE = r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]"
"""British National Insurance numbers have no check digit and are not in stdnum."""


def national_patterns() -> list[DataPattern]:
    """Return the patterns of the US social security number and of all other national numbers."""
    announced_ssn, ssn_key = _announced(_SSN_HINTS, _SSN_ANNOUNCED)
    patterns = [
        DataPattern("ssn", _SSN, _social_security),
        DataPattern("ssn", announced_ssn, _social_security, ssn_key),
    ]
    for name, form in _UNANNOUNCED.items():
        patterns.append(DataPattern("national_id", rf"\b{form}\b", _stdnum_check(name)))
    for name, (hints, form) in _ANNOUNCED.items():
        regex, key = _announced(hints, form)
        patterns.append(DataPattern("national_id", regex, _stdnum_check(name), key))
    regex, key = _announced(_INSURANCE_HINTS, _INSURANCE)
    is_insurance = re.compile(_INSURANCE).fullmatch
    insurance = checked("pattern", lambda number: is_insurance(number) is not None, 0.8)
    return [*patterns, DataPattern("national_id", regex, insurance, key)]


def _announced(hints: str, form: str) -> tuple[str, str]:
    """Return the regex of a number after one of the words, and the key of that regex."""
    key = rf"(?i:\b(?:{hints})\b)"
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


_PHONE_HINTS = (
    "phone|telephone|tel|telefon|mobile|mobil|handy|cell|cellphone|fax|whatsapp|sms|call|dial"
)
_INTERNATIONAL = r"\+ ?\(?[1-9](?:[ ().\-/]{0,3}[0-9]){6,14}"
_ABROAD = r"\b00 ?[1-9][0-9]{0,2}[ ().\-/]{1,3}[0-9](?:[ ().\-/]{0,3}[0-9]){5,12}\b"
_NORTH_AMERICAN = (
    r"(?:\b1[ .-]?)?(?:\([2-9][0-9]{2}\)[ .-]{0,2}|\b[2-9][0-9]{2}[ .-])"
    r"[2-9][0-9]{2}[ .-][0-9]{4}\b"
)
_WITH_ZERO = r"(?:\(0[0-9]{0,5}\)|\b0[0-9]{1,5})[ ./-]{1,3}[0-9]{2,8}(?:[ ./-][0-9]{2,8}){0,4}\b"
_GROUPED = r"\b[1-9][0-9]{1,2}(?:[ .-][0-9]{2,4}){2,4}\b"
_HINTED = rf"(?i)\b(?:{_PHONE_HINTS})\b[^0-9+(\]\n]{{0,20}}([+(]?[0-9][0-9 ().\-/]{{4,20}}[0-9])"

_GROUP_END = re.compile(rb"[0-9](?![0-9])")
_YEAR = r"(?:19|20)[0-9]{2}"
_DATE = re.compile(
    rf"(?:{_YEAR}[ ./-][0-9]{{1,2}}|[0-9]{{1,2}}[ ./-][0-9]{{1,2}}[ ./-]{_YEAR})\b".encode()
)
_FEWEST, _MOST = 7, 15
"""Digits of a number, including the country code."""


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
    forms = {_INTERNATIONAL: _check([None]), _ABROAD: _check([None])}
    groups: dict[str, list[str]] = {}
    for region in regions:
        groups.setdefault(_form(region), []).append(region)
    forms |= {form: _check(members) for form, members in groups.items()}
    forms[_HINTED] = _check([*regions], may_be_local=True)
    return [DataPattern("phone", form, check) for form, check in forms.items()]


def _form(region: str) -> str:
    """Return the regex of a number as it is written within its own country."""
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
    """Yield end and text of the candidate, then of the candidate without its last groups."""
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
