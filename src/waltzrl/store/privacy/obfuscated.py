"""Addresses that people spell out so that no program finds them: `ada [at] example dot com`."""

import ipaddress
import re

from waltzrl.store.privacy.detection import DataPattern, PatternHit

_WORD = "[A-Za-z0-9\xe0\xc0_-]"
_AT_WORDS = "at|@|\xe0t|arobase|arroba|chiocciola"
_DOT_WORDS = r"dot|\.|punkt|point|punto|ponto|punt"
_OPEN, _CLOSE = r" {0,2}[\[({<] ?", r" ?[\])}>] {0,2}"
_AT = f"(?:{_OPEN}(?i:{_AT_WORDS}){_CLOSE}|%40|&#(?:64|[xX]40);|&commat;)"
_AT_IN_WORDS = "(?: (?i:at|arobase|arroba|chiocciola) |_(?i:at)_| ?@ | @)"
_SPELT_DOT = (
    f"(?:{_OPEN}(?i:{_DOT_WORDS}){_CLOSE}"
    r"| (?i:dot|punkt|punto|ponto) |_(?i:dot)_| \. ?)"
)
_DOT = rf"(?:\.|{_SPELT_DOT})"
_LOCAL = rf"{_WORD}{{1,40}}(?:(?:[.+]|{_SPELT_DOT}){_WORD}{{1,40}}){{0,3}}"
_DOMAIN = rf"{_WORD}{{1,40}}(?:{_DOT}{_WORD}{{2,40}}){{1,3}}"
_SPELT_DOMAIN = rf"{_WORD}{{1,40}}(?:{_DOT}{_WORD}{{2,40}}){{0,2}}{_SPELT_DOT}{_WORD}{{2,24}}"
_MAIL_HINT = r"(?i:e-?mail|\bmail|\breach|\bcontact|\bwrite)"
_OCTET = "[0-9]{1,3}"
_OCTET_DOT = r"(?:\[\.\]|\(\.\)| \. | ?\[dot\] ?| dot |\.)"
_SPELT_OCTET_DOT = r"[0-9] ?(?:\[\.\]|\(\.\)|\[dot\]|\. |dot) ?[0-9]"

_DOMAIN_ENDS = """
    app at au be biz br ca ch cn co com de dev dk edu es eu example fi fr gov gr ie in info io it
    jp me mx net nl no nz org pl pt ro ru se test tr ua uk us za
"""
_DOMAINS = frozenset(_DOMAIN_ENDS.split())
"""The last labels of nearly all addresses of people."""
_USUAL_WORDS = """
    a address all am an and are available be been best book buy call check click email follow
    found free go had has have her here him hosted i information is it join look me more now
    online only or out page read register see shop sign site store than the them there this
    today up us visit was watch we website were work works you
"""
_NO_LOCALS = frozenset(_USUAL_WORDS.split())
"""Words before "at example dot com" that are no name of a mailbox."""


def obfuscated_patterns() -> list[DataPattern]:
    """Return the patterns of addresses of mail and of the internet that are spelt out."""
    told = rf"{_MAIL_HINT}[^\n@]{{0,24}}?\b({_LOCAL}(?: (?i:at) | ?@ ?){_DOMAIN})"
    address = rf"\b({_OCTET}(?:{_OCTET_DOT}{_OCTET}){{3}})\b"
    return [
        DataPattern("email", f"{_LOCAL}{_AT}{_DOMAIN}", _check_mail, _AT),
        DataPattern("email", f"{_LOCAL}{_AT_IN_WORDS}{_SPELT_DOMAIN}", _check_mail, _SPELT_DOT),
        DataPattern("email", f"{_LOCAL}@{_SPELT_DOMAIN}", _check_mail, "@"),
        DataPattern("email", told, _check_mail, _MAIL_HINT),
        DataPattern("ip_address", address, _check_address, _SPELT_OCTET_DOT),
        DataPattern("ip_address", rf"\bip-({_OCTET}(?:-{_OCTET}){{3}})\b", _check_address),
    ]


def _check_mail(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept an address that ends in a usual domain and does not begin with a usual word."""
    # At the start of the text this slice is [-1:0], which is empty.
    if text[start - 1 : start].isalnum() or text[start - 1 : start] in (b"_", b"-", b".", b"+"):
        return None  # the rest of a word that was rejected
    words = re.split(rb"[^a-z0-9\xe0\xc0]+", text[start:end].lower())
    if words[0].decode("latin-1") in _NO_LOCALS or words[-1].decode("latin-1") not in _DOMAINS:
        return None
    return PatternHit(start, end, 0.8, "spelt out")


def _check_address(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept an address of the internet whose dots are spelt out."""
    piece = text[start:end].decode()
    try:
        address = ipaddress.ip_address(".".join(re.findall("[0-9]+", piece)))
    except ValueError:
        return None
    is_plain = piece == str(address)  # it may be a version, and is searched for by itself
    return None if is_plain or address.is_loopback else PatternHit(start, end, 0.8, "spelt out")
