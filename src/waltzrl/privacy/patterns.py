"""All that the scanner looks for."""

from collections.abc import Sequence

from waltzrl.privacy import validators
from waltzrl.privacy.credentials import credential_patterns
from waltzrl.privacy.national import announced, national_patterns
from waltzrl.privacy.pattern import DataPattern
from waltzrl.privacy.phones import phone_patterns
from waltzrl.privacy.plain import CAPITAL, SMALL, UNCASED

_LETTER = f"A-Za-z{CAPITAL}{SMALL}"
_LABEL = rf"[{_LETTER}{UNCASED}0-9_-]+"
_MAIL = (
    rf"(?:[{_LETTER}0-9_.+%'&~-]+|{UNCASED}+)@(?:{_LABEL}\.)+"
    rf"(?:[A-Za-z]{{2,24}}|[{SMALL}{UNCASED}]{{2,24}})"
)

_JOINT = r"(?: ?[.-] ?| )"
_CARDS = (
    r"\b[2-9][0-9]{12,18}\b",
    rf"\b[2-9][0-9]{{3}}(?:{_JOINT}[0-9]{{4}}){{3}}(?:{_JOINT}?[0-9]{{1,3}})?\b",
    rf"\b3[0-9]{{3}}{_JOINT}[0-9]{{6}}{_JOINT}[0-9]{{4,5}}\b",
    rf"\b4[0-9]{{3}}(?:{_JOINT}[0-9]{{3}}){{3}}\b",
)
_IBAN = r"\b[A-Za-z]{2}[0-9]{2}(?:[ -]?[A-Za-z0-9]){11,30}"
_SSN = r"\b[0-9]{3}-[0-9]{2}-[0-9]{4}\b"
_SSN_HINTS = "ssn|social security"
_SSN_ANNOUNCED = r"[0-9]{3}[ .-]?[0-9]{2}[ .-]?[0-9]{4}"

_V4 = r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b"
_V6 = r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{0,32}(?:\.[0-9]{1,3}){0,3}"

_NAME_HINT = (
    r"(?i:\b(?:(?:full |first |last |family |given |middle )?name|surname|contact(?: person)?"
    r"|customer|patient|applicant|employee)\b[\"']?\s{0,2}[:=]\s{0,2}[\"']?"
    r"|\b(?:my (?:full )?name is|i am called|i'm called|they call me) )"
)
_NAME_WORD = rf"(?:[A-Z{CAPITAL}](?:[{_LETTER}'-]*[{_LETTER}]|\.)?|{UNCASED}+)"
_PARTICLE = r"(?:van|von|de|der|den|da|di|del|la|le|bin|ibn|al|el|dos) "
_NAME = rf"({_NAME_WORD}(?: (?:{_PARTICLE}){{0,2}}{_NAME_WORD}){{0,3}})"


def all_patterns(regions: Sequence[str]) -> list[DataPattern]:
    """Return the patterns of every kind.

    Args:
        regions: whose telephone numbers are known without the country's code.

    Raises:
        InputError: a region is unknown.
    """
    announced_ssn, ssn_key = announced(_SSN_HINTS, _SSN_ANNOUNCED)
    return [
        DataPattern("email", _MAIL, validators.mail, "@"),
        *phone_patterns(regions),
        *(DataPattern("credit_card", regex, validators.card) for regex in _CARDS),
        DataPattern("iban", _IBAN, validators.account, r"\b[A-Za-z]{2}[0-9]{2}[ -]?[A-Za-z0-9]{4}"),
        DataPattern("ssn", _SSN, validators.social_security),
        DataPattern("ssn", announced_ssn, validators.social_security, ssn_key),
        *national_patterns(),
        DataPattern("ip_address", _V4, validators.address_v4),
        DataPattern("ip_address", _V6, validators.address_v6, r":[0-9A-Fa-f]{0,4}:"),
        *credential_patterns(),
        DataPattern("personal_name", _NAME_HINT + _NAME, validators.name, _NAME_HINT),
    ]
