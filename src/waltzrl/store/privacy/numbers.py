"""National identifiers, verified by python-stdnum.

Those whose form and check digits make false alarms rare are found anywhere; those that look like
any other number only after a word that announces them.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence

from stdnum.us import ssn

from waltzrl.store.privacy.detection import (
    Check,
    DataPattern,
    PatternHit,
    check_whole,
    stands_apart,
)
from waltzrl.store.privacy.hints import build_hints

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
    announced_ssn, ssn_key = _build_announced_regex(_SSN_HINTS, _SSN_ANNOUNCED)
    patterns = [
        DataPattern("ssn", _SSN, _social_security),
        DataPattern("ssn", announced_ssn, _social_security, ssn_key),
    ]
    for name, form in _UNANNOUNCED.items():
        patterns.append(DataPattern("national_id", rf"\b{form}\b", _stdnum_check(name)))
    for name, (words, form) in _ANNOUNCED.items():
        regex, key = _build_announced_regex(words, form)
        patterns.append(DataPattern("national_id", regex, _stdnum_check(name), key))
    regex, key = _build_announced_regex(_INSURANCE_HINTS, _INSURANCE_ANNOUNCED)
    is_insurance = re.compile(_INSURANCE_ANNOUNCED).fullmatch
    insurance = check_whole("pattern", lambda number: is_insurance(number) is not None, 0.8)
    patterns.append(DataPattern("national_id", regex, insurance, key))
    if "GB" in regions:
        patterns.append(DataPattern("national_id", rf"\b{_INSURANCE}\b", insurance))
    for region in regions:
        for name, form in _WITHOUT_A_WORD.get(region, {}).items():
            patterns.append(DataPattern("national_id", rf"\b{form}\b", _stdnum_check(name)))
    my_number = check_whole("my_number", _is_my_number)
    for what, form, check in (
        ("my number", _MY_NUMBER, my_number),
        ("aadhaar", _AADHAAR, _stdnum_check("in_.aadhaar")),
    ):
        key = build_hints(what)
        regex = rf"{key}[^0-9\]\n]{{0,24}}\b({form})\b"
        patterns.append(DataPattern("national_id", regex, check, key))
    return patterns


def _is_my_number(number: str) -> bool:
    """Check the last digit of a Japanese individual number (Ordinance 85 of 2014, article 5)."""
    *digits, check = (int(digit) for digit in number if digit.isdigit())
    weights = (6, 5, 4, 3, 2, 7, 6, 5, 4, 3, 2)
    remainder = sum(d * w for d, w in zip(digits, weights, strict=True)) % 11
    return check == (0 if remainder <= 1 else 11 - remainder)


def _build_announced_regex(words: str, form: str) -> tuple[str, str]:
    """Return the regex of a number after one of the words, and the key of that regex."""
    key = rf"(?i:\b(?:{words})\b)"
    return rf"{key}[^0-9\]\n]{{0,24}}\b({form})\b", key


def _stdnum_check(name: str) -> Check:
    is_valid: Callable[[str], bool] = pkgutil.resolve_name(f"stdnum.{name}:is_valid")
    return check_whole(f"stdnum.{name}", is_valid)


def _social_security(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a US social security number in a range that is in use, with any separators."""
    number = re.sub(rb"\D", b"", text[start:end]).decode()
    if ssn.is_valid(number) and stands_apart(text, start, end):
        return PatternHit(start, end, 0.9, "stdnum.us.ssn")
    return None
