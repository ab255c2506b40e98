"""Decide which candidates are cards, accounts, addresses: check digits, ranges, what stands around.

Sources: ISO/IEC 7812 (cards), ISO 13616 (IBAN), RFC 4291 and 6890 (addresses).
"""

import ipaddress
import re

from stdnum import iban, luhn, numdb
from stdnum.us import ssn

from waltzrl.privacy.pattern import PatternHit, stands_apart

_ISSUERS = (
    ((13, 16, 19), ("4",)),  # Visa
    ((15,), ("34", "37")),  # American Express
    ((14, 16, 17, 18, 19), ("300", "301", "302", "303", "304", "305", "309", "36", "38", "39")),
    ((16,), ("51", "52", "53", "54", "55")),  # Mastercard, beside 2221 to 2720
    ((16, 17, 18, 19), ("6011", "644", "645", "646", "647", "648", "649", "65")),  # Discover
    ((16, 17, 18, 19), ("62", "60", "81", "82", "508")),  # UnionPay, RuPay
    ((16, 17, 18, 19), ("2200", "2201", "2202", "2203", "2204", "9792")),  # Mir, Troy
    ((13, 14, 15, 16, 17, 18, 19), ("5018", "5020", "5038", "5893", "6304", "67")),  # Maestro
)
"""Lengths and first digits of those who issue cards."""
_MASTERCARD = range(2221, 2721)
_JCB = range(3528, 3590)
_GROUP_END = re.compile(rb"\d(?!\d)")
_ROW = re.compile(rb"\b\d{4}(?:[ -]\d{4}){8,}")
"""More numbers of four digits than two cards have."""
_ROW_LOOK = 50


def card(text: bytes, start: int, end: int) -> PatternHit | None:
    """Find a card number at the start of the candidate, whose last groups may be something else."""
    if not stands_apart(text, start, start) or _is_in_table(text, start):
        return None
    for match in reversed(list(_GROUP_END.finditer(text, start, end))):
        number = re.sub(rb"\D", b"", text[start : match.end()]).decode()
        if len(number) < 13:
            return None
        if _is_issued(number) and luhn.is_valid(number):
            if match.end() == end and not stands_apart(text, end, end):
                continue
            return PatternHit(start, match.end(), 1.0, "luhn")
    return None


def _is_in_table(text: bytes, place: int) -> bool:
    first = max(place - _ROW_LOOK, 0)
    rows = _ROW.finditer(text, first, place + _ROW_LOOK)
    return any(row.start() <= place < row.end() for row in rows)


def _is_issued(number: str) -> bool:
    if len(number) >= 16 and int(number[:4]) in _JCB:
        return True
    if len(number) == 16 and int(number[:4]) in _MASTERCARD:
        return True
    return any(len(number) in lengths and number.startswith(firsts) for lengths, firsts in _ISSUERS)


_STRUCTURES = numdb.get("iban")
_PARTS = re.compile(r"([0-9]+)!")
_ALNUM = re.compile(rb"[0-9A-Za-z]")


def account(text: bytes, start: int, end: int) -> PatternHit | None:
    """Find an IBAN at the start of the candidate: its country says how long it is."""
    country = text[start : start + 2].decode().upper()
    structure = _STRUCTURES.info(country)[0][1].get("bban", "")
    length = 4 + sum(map(int, _PARTS.findall(structure)))
    places = [match.end() for match in _ALNUM.finditer(text, start, end)]
    if not structure or len(places) < length:
        return None
    stop = places[length - 1]
    if text[stop : stop + 1].isalnum():
        return None
    if iban.is_valid(text[start:stop].decode(), check_country=False):
        return PatternHit(start, stop, 1.0, "mod97")
    return None


def social_security(text: bytes, start: int, end: int) -> PatternHit | None:
    """Take what can be a number of the US social security, however its parts are held together."""
    number = re.sub(rb"\D", b"", text[start:end]).decode()
    if ssn.is_valid(number) and stands_apart(text, start, end):
        return PatternHit(start, end, 0.9, "stdnum.us.ssn")
    return None


_VERSION = re.compile(
    rb"(?i)(?:(?:^|[^0-9a-z])(?:v|ver|version|release|build|rev|revision|firmware|section|chapter)"
    rb"[\s.:=\"'-]{0,3}|[a-z]/|==)$"
)
_LOOK_BACK = 24


def address_v4(text: bytes, start: int, end: int) -> PatternHit | None:
    """Take an IPv4 address that could be somebody's; version numbers look the same."""
    if not stands_apart(text, start, end) or text[start - 1 : start] == b".":
        return None
    if _VERSION.search(text[max(start - _LOOK_BACK, 0) : start]):
        return None
    return _address(text, start, end)


def address_v6(text: bytes, start: int, end: int) -> PatternHit | None:
    """Take an IPv6 address; times, MAC addresses and scopes in code look like one."""
    around = text[max(start - 1, 0) : start] + text[end : end + 1]
    piece = text[start:end]
    is_short = b"::" in piece
    if re.search(rb"[0-9A-Za-z_:]", around) or not (is_short or piece.count(b":") in (6, 7)):
        return None
    if is_short and (piece.endswith(b"::") or not re.search(rb"[0-9A-Fa-f]{3}", piece)):
        return None
    return _address(text, start, end)


def _address(text: bytes, start: int, end: int) -> PatternHit | None:
    try:
        address = ipaddress.ip_address(text[start:end].decode())
    except ValueError:
        return None
    is_nobodys = address.is_unspecified or address.is_loopback or address.is_multicast
    if is_nobodys or (address.version == 4 and address.is_reserved):
        return None
    return PatternHit(start, end, 0.95, "ipaddress")


_PICTURES = (b".png", b".jpg", b".jpeg", b".gif", b".svg", b".webp")


def mail(text: bytes, start: int, end: int) -> PatternHit | None:
    """Take an address of e-mail, but not a call in code or a picture's file name."""
    local = text[start:end].partition(b"@")[0]
    first = start + len(local) - len(local.lstrip(b".'-"))
    if local.endswith(b".") or text[first : first + 1] == b"@" or text[end : end + 1] == b"(":
        return None
    if text[start:end].lower().endswith(_PICTURES):
        return None
    return PatternHit(first, end, 1.0, "pattern")


def name(text: bytes, start: int, end: int) -> PatternHit | None:
    """Believe a hint, unless what follows is a call or an identifier in code."""
    is_code = text[end : end + 1] in (b"(", b"[", b"_") or text[end : end + 1].isdigit()
    return None if is_code else PatternHit(start, end, 0.6, "pattern")
