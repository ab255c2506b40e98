"""Numbers that states give to people, checked by python-stdnum.

Those whose form and check digits make false alarms rare are found by themselves. Those that look
like any other number are found only behind a word that announces them.
"""

import pkgutil
import re
from collections.abc import Callable, Mapping

from waltzrl.privacy.pattern import DataPattern, checked

_BY_THEMSELVES: Mapping[str, str] = {
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
"""The number's form by its module in stdnum."""

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
"""The words that announce the number, and its form, by its module in stdnum."""

_INSURANCE_HINTS = "nino|ni|ni number|national insurance"
_INSURANCE = r"[A-CEGHJ-PR-TW-Z][A-CEGHJ-NPR-TW-Z] ?[0-9]{2} ?[0-9]{2} ?[0-9]{2} ?[A-D]"
"""The British one, which has no check digit; stdnum does not know it."""


def announced(hints: str, shape: str) -> tuple[str, str]:
    """Return a regex of a number behind one of the words, and the key of that regex."""
    key = rf"(?i:\b(?:{hints})\b)"
    return rf"{key}[^0-9\]\n]{{0,24}}\b({shape})\b", key


def national_patterns() -> list[DataPattern]:
    """Return the patterns of all countries that are known."""
    patterns = [
        DataPattern("national_id", rf"\b{shape}\b", checked(f"stdnum.{name}", _validator(name)))
        for name, shape in _BY_THEMSELVES.items()
    ]
    for name, (hints, shape) in _ANNOUNCED.items():
        check = checked(f"stdnum.{name}", _validator(name))
        regex, key = announced(hints, shape)
        patterns.append(DataPattern("national_id", regex, check, key))
    regex, key = announced(_INSURANCE_HINTS, _INSURANCE)
    is_insurance = re.compile(_INSURANCE).fullmatch
    insurance = checked("pattern", lambda number: is_insurance(number) is not None, 0.8)
    return [*patterns, DataPattern("national_id", regex, insurance, key)]


def _validator(name: str) -> Callable[[str], bool]:
    validator: Callable[[str], bool] = pkgutil.resolve_name(f"stdnum.{name}:is_valid")
    return validator
