"""National identifiers, verified by python-stdnum.

Those whose form and check digits make false alarms rare are found anywhere; those that look like
any other number only after a word that announces them.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping, Sequence

from stdnum import luhn
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
    "es.dni": r"(?:[0-9]{8}|[0-9]{2}\.[0-9]{3}\.[0-9]{3})-?[A-HJ-NP-TV-Z]",
    "es.nie": r"[XYZ]-?[0-9]{7}-?[A-HJ-NP-TV-Z]",
    "fi.hetu": r"[0-3][0-9][01][0-9]{3}[-+A-FU-Y][0-9]{3}[0-9A-FHJ-NPR-Y]",
    "fr.nir": (
        r"[12] ?[0-9]{2} ?(?:0[1-9]|1[0-2]|20|3[0-9]|4[0-2]|[5-9][0-9]) ?[0-9][0-9AB] ?"
        r"[0-9]{3} ?[0-9]{3} ?[0-9]{2}"
    ),
    "it.codicefiscale": r"[A-Za-z]{6}[0-9]{2}[A-Za-z][0-9]{2}[A-Za-z][0-9]{3}[A-Za-z]",
    "kr.rrn": r"[0-9]{2}[01][0-9][0-3][0-9]-[1-8][0-9]{6}",
    "mx.curp": r"[A-Z]{4}[0-9]{6}[HM][A-Z]{5}[0-9A-Z][0-9]",
    "my.nric": r"[0-9]{6}-[0-9]{2}-[0-9]{4}",
    "pk.cnic": r"[1-7][0-9]{4}-[0-9]{7}-[0-9]",
    "us.itin": r"9[0-9]{2}-[5-9][0-9]-[0-9]{4}",
}
"""Module in stdnum -> form of the number."""

_ANNOUNCED: Mapping[str, tuple[str, str]] = {
    "ar.cuit": ("cui[tl]", r"[0-9]{2}[ -]?[0-9]{8}[ -]?[0-9]"),
    "at.vnr": ("sv-?nr|svnr|vsnr|(?:sozial)?versicherungsn(?:ummer|r)", r"[0-9]{4} ?[0-9]{6}"),
    "au.tfn": ("tfn|tax file", r"[0-9]{3} ?[0-9]{3} ?[0-9]{2,3}"),
    "be.nn": ("rijksregister|registre national|nrn|niss|insz", r"[0-9]{11}"),
    "bg.egn": ("egn", r"[0-9]{10}"),
    "br.cpf": ("cpf", r"[0-9]{11}"),
    "ca.sin": ("sin|social insurance", r"[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{3}"),
    "ch.ssn": ("ahv|avs|oasi", r"756[0-9]{10}"),
    "cl.rut": ("rut", r"[0-9]{7,8}-?[0-9Kk]"),
    "cz.rc": ("rodn.|birth number", r"[0-9]{6}/?[0-9]{3,4}"),
    "de.idnr": ("steuer|steuer-?id|idnr|tax id|tin", r"[0-9]{2} ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}"),
    "de.stnr": ("steuernummer|steuer-?nr", r"[0-9]{2,3}/[0-9]{3,4}/[0-9]{4,5}"),
    "dk.cpr": ("cpr", r"[0-9]{6}[- ]?[0-9]{4}"),
    "do.cedula": ("c.dula", r"[0-9]{3}-?[0-9]{7}-?[0-9]"),
    "ec.ci": ("c.dula", r"[0-9]{9}-?[0-9]"),
    "ee.ik": ("isikukood", r"[0-9]{11}"),
    "gb.nhs": ("nhs", r"[0-9]{3}[ -]?[0-9]{3}[ -]?[0-9]{4}"),
    "gb.utr": ("utr|unique taxpayer", r"[0-9]{5} ?[0-9]{5}"),
    "gr.amka": ("amka", r"[0-9]{11}"),
    "hr.oib": ("oib", r"[0-9]{11}"),
    "id.nik": ("nik|ktp", r"[0-9]{16}"),
    "ie.pps": ("ppsn?", r"[0-9]{7} ?[A-W][A-IW]?"),
    "il.idnr": ("israeli id|teudat zehut", r"[0-9]{8,9}"),
    "in_.epic": ("epic|voter id", r"[A-Z]{3}[0-9]{7}"),
    "in_.pan": ("pan|permanent account", r"[A-Z]{5}[0-9]{4}[A-Z]"),
    "is_.kennitala": ("kennitala|kt", r"[0-9]{6}-?[0-9]{4}"),
    "lt.asmens": ("asmens kod.s", r"[0-9]{11}"),
    "mx.rfc": ("rfc", r"[A-Z]{4}[0-9]{6}[0-9A-Z]{3}"),
    "nl.bsn": ("bsn|burgerservicenummer|sofi", r"[0-9]{4}[. ]?[0-9]{2}[. ]?[0-9]{3}"),
    "no.fodselsnummer": ("f.dselsnummer|fnr", r"[0-9]{6} ?[0-9]{5}"),
    "nz.ird": ("ird", r"[0-9]{2,3}[ -]?[0-9]{3}[ -]?[0-9]{3}"),
    "pe.cui": ("cui|dni", r"[0-9]{8}-?[0-9A-K]"),
    "pl.pesel": ("pesel", r"[0-9]{11}"),
    "pt.nif": ("nif|contribuinte", r"[0-9]{3} ?[0-9]{3} ?[0-9]{3}"),
    "ro.cnp": ("cnp|cod numeric", r"[0-9]{13}"),
    "ru.inn": ("inn", r"[0-9]{12}"),
    "se.personnummer": ("personnummer|personal number", r"(?:[0-9]{2})?[0-9]{6}[-+]?[0-9]{4}"),
    "si.emso": ("jmbg|em.o|umcn|mati.n. .tevilk.|mati.n. broj", r"[0-9]{13}"),
    "th.pin": ("thai id|citizen id", r"[0-9]-?[0-9]{4}-?[0-9]{5}-?[0-9]{2}-?[0-9]"),
    "tr.tckimlik": ("kimlik|tckn|tc no", r"[0-9]{11}"),
    "ua.rntrc": ("rnok?pp|rntrc", r"[0-9]{10}"),
    "us.itin": ("itin", r"9[0-9]{8}"),
    "za.idnr": ("south african id|sa id|id number|identity number", r"[0-9]{13}"),
}
"""Module in stdnum -> the words that announce the number, and its form. A space in the words may be
missing, or be `_` or `-` as in keys."""

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

_DOCUMENTS = (
    "national id(?:entity)?(?: card)?|identity (?:card|document)|id card|carte d'identit."
    "|(?:personal)?ausweis(?:nummer|nr)?|documento de identidad|carta d'identit.|identiteitskaart"
    "|green card|residence permit"
)
_DOCUMENT_NUMBER = r"[A-Z]{0,5}[0-9][0-9A-Z-]{4,17}"
_DOCUMENT_END = (
    r"(?:[ _-]?(?:number|num|no|nr|n.|id|nummer)\b)?[\"']?(?:\.?[ ]?[:=#]| is| was| ist|\.)?"
)
_FEWEST_DIGITS = 5
"""Digits of the number of a document."""


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
    patterns += [
        DataPattern("national_id", rf"\b{form}", check_whole(name, is_valid))
        for name, (form, is_valid) in _OWN_CHECKS.items()
    ]
    for name, (words, form, is_valid) in _OWN_ANNOUNCED.items():
        regex, key = _build_announced_regex(words, form)
        patterns.append(DataPattern("national_id", regex, check_whole(name, is_valid), key))
    words = _spell_words(_DOCUMENTS)
    document = rf"{words}{_DOCUMENT_END}[\"' ]{{0,3}}\b({_DOCUMENT_NUMBER})\b"
    is_number = check_whole("hint", _is_document_number, 0.7)
    patterns.append(DataPattern("national_id", document, is_number, words))
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


def _is_document_number(number: str) -> bool:
    """Whether a text has the digits of a number; a date, with its dashes, is none."""
    digits = sum(map(str.isdigit, number))
    return digits >= _FEWEST_DIGITS and re.fullmatch("[0-9]{4}-[0-9]{2}-[0-9]{2}", number) is None


def _is_singaporean(number: str) -> bool:
    """Check the letter of an NRIC or FIN of Singapore."""
    first, digits, letter = number[0], number[1:-1], number[-1]
    total = sum(w * int(d) for w, d in zip((2, 7, 6, 5, 4, 3, 2), digits, strict=True))
    # The series that were begun in 2000 and later add an offset.
    total += {"T": 4, "G": 4, "M": 3}.get(first, 0)
    letters = {"S": "JZIHGFEDCBA", "F": "XWUTRQPNMLK", "M": "XWUTRQPNJLK"}
    return letters[{"T": "S", "G": "F"}.get(first, first)][total % 11] == letter


def _is_of_hong_kong(number: str) -> bool:
    """Check the last character of an identity card of Hong Kong, which is in parentheses."""
    letters, digits, check = number[:-9], number[-9:-3], number[-2]
    values = [int(character, 36) for character in letters + digits]
    if len(letters) == 1:
        values.insert(0, 36)  # a space
    total = sum(w * v for w, v in zip(range(9, 1, -1), values, strict=True))
    # A digit of base 11, in which A is ten.
    return (total + int(check, 11)) % 11 == 0


def _is_taiwanese(number: str) -> bool:
    """Check the last digit of a national identity card of Taiwan."""
    # The letters in the order of their codes, from 10 on, which is not that of the alphabet.
    area = "ABCDEFGHJKLMNPQRSTUVXYWZIO".index(number[0]) + 10
    digits = [area // 10, area % 10, *map(int, number[1:])]
    return (
        sum(w * d for w, d in zip((1, 9, 8, 7, 6, 5, 4, 3, 2, 1, 1), digits, strict=True)) % 10 == 0
    )


def _is_of_emirates(number: str) -> bool:
    valid: bool = luhn.is_valid(number.replace("-", ""))
    return valid


def _is_russian(number: str) -> bool:
    """Check the last two digits of a SNILS."""
    digits = [int(digit) for digit in number if digit.isdigit()]
    total = sum(w * d for w, d in zip(range(9, 0, -1), digits[:9], strict=True))
    # A remainder of 100 is written as 00.
    return total % 101 % 100 == 10 * digits[9] + digits[10]


def _is_medicare(number: str) -> bool:
    """Check the ninth digit of an Australian Medicare card."""
    digits = [int(digit) for digit in number if digit.isdigit()]
    weighed = zip((1, 3, 7, 9, 1, 3, 7, 9), digits[:8], strict=True)
    return sum(w * d for w, d in weighed) % 10 == digits[8]


def _is_of_some_country(number: str) -> bool:
    return any(pkgutil.resolve_name(f"stdnum.{name}:is_valid")(number) for name in _OF_PEOPLE)


_OWN_CHECKS: Mapping[str, tuple[str, Callable[[str], bool]]] = {
    "hkid": (r"[A-Z]{1,2}[0-9]{6}\([0-9A]\)", _is_of_hong_kong),
    "nric": (r"[STFGM][0-9]{7}[A-Z]\b", _is_singaporean),
    "twid": (r"[A-Z][12][0-9]{8}\b", _is_taiwanese),
    "emirates_id": (r"784-[12][0-9]{3}-[0-9]{7}-[0-9]\b", _is_of_emirates),
}
"""Numbers that are not in stdnum: name of the check -> form of the number, and the check."""

_OF_PEOPLE = (
    "be.nn", "bg.egn", "br.cpf", "cn.ric", "ee.ik", "id.nik", "lt.asmens", "no.fodselsnummer",
    "pl.pesel", "ro.cnp", "se.personnummer", "si.emso", "th.pin", "tr.tckimlik",
)  # fmt: skip
"""Modules in stdnum of numbers that are long, and that only people have."""

_OWN_ANNOUNCED: Mapping[str, tuple[str, str, Callable[[str], bool]]] = {
    "snils": ("snils", r"[0-9]{3}-?[0-9]{3}-?[0-9]{3}[ -]?[0-9]{2}", _is_russian),
    "medicare": ("medicare", r"[2-6][0-9]{3} ?[0-9]{5} ?[0-9]", _is_medicare),
    "some_country": (
        "id (?:number|no)|identity number|identification number|citizen (?:id|number)"
        "|personal (?:id|code|identification)(?: number)?|tax(?:payer)? (?:id|number)",
        r"[0-9]{6}-?[0-9]{4,11}[0-9Xx]?",
        _is_of_some_country,
    ),
}
"""Name of the check -> the words that announce the number, its form, and the check."""


def _build_announced_regex(words: str, form: str) -> tuple[str, str]:
    """Return the regex of a number after one of the words, and the key of that regex.

    In English it may precede them: "111222333 is my BSN", "111222333 (BSN)".
    """
    key = _spell_words(words)
    # Not past a `]`: a placeholder, overwritten with it, was what the word announced.
    after = rf"{key}[^0-9\]\n]{{0,32}}\b({form})\b"
    return rf"{after}|\b({form})(?: ?\(|,? is |, )(?:(?:my|his|her|their|our|the|your) )?{key}", key


def _spell_words(words: str) -> str:
    """Return a regex of words as they stand in a text or in a key."""
    return rf"(?i:(?:\b|_)(?:{words.replace(' ', '[ _-]?')})(?:\b|[^0-9A-Za-z]))"


def _stdnum_check(name: str) -> Check:
    is_valid: Callable[[str], bool] = pkgutil.resolve_name(f"stdnum.{name}:is_valid")
    # Some modules do not strip the dots with which their own numbers are written.
    return check_whole(f"stdnum.{name}", lambda number: is_valid(number.replace(".", "")))


def _social_security(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a US social security number in a range that is in use, with any separators."""
    number = re.sub(rb"\D", b"", text[start:end]).decode()
    if ssn.is_valid(number) and stands_apart(text, start, end):
        return PatternHit(start, end, 0.9, "stdnum.us.ssn")
    return None
