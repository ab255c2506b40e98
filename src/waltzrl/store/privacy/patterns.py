"""All patterns of the scanner, with the checks of e-mail, cards, accounts, addresses and names.

Sources: ISO/IEC 7812 (cards), ISO 13616 (IBAN), RFC 4291 and 6890 (IP addresses).
"""

import ipaddress
import re
from collections.abc import Sequence
from functools import cache
from string import ascii_uppercase

from stdnum import numdb

from waltzrl.store.privacy.credentials import credential_patterns
from waltzrl.store.privacy.detection import DataPattern, PatternHit, check_whole, stands_apart
from waltzrl.store.privacy.hints import SMALL, build_hints
from waltzrl.store.privacy.normalised import CAPITAL, OTHER, UNCASED
from waltzrl.store.privacy.numbers import national_patterns
from waltzrl.store.privacy.obfuscated import obfuscated_patterns
from waltzrl.store.privacy.telephones import phone_patterns

_LETTER = f"A-Za-z{CAPITAL}{SMALL}"
_LABEL = rf"(?:[{_LETTER}{UNCASED}0-9_-]|\\{{1,2}}[_-])+"
_MAIL = (
    rf"(?:(?:[{_LETTER}0-9_.+%'&~-]|\\{{1,2}}[_.+-])+|{UNCASED}+)\\{{0,2}}@(?:{_LABEL}\\{{0,2}}\.)+"
    rf"(?:[A-Za-z]{{2,24}}|[{SMALL}{UNCASED}]{{2,24}})"
)
"""An address, in which Markdown may escape signs, in JSON by two backslashes."""

_JOINT = r"(?:[ \t\r]{0,2}[./\n-][ \t]{0,2}|[ \t]{1,3})"
"""The text between the groups of a number; a message in parts has a line break between them."""
_CARDS = (
    r"\b(?:[2-9][0-9]{11,18}|1800[0-9]{11})\b",
    rf"\b[2-9][0-9]{{3}}(?:{_JOINT}[0-9]{{4}}){{3}}(?:{_JOINT}?[0-9]{{1,3}})?\b",
    rf"\b3[0-9]{{3}}{_JOINT}[0-9]{{6}}{_JOINT}[0-9]{{4,5}}\b",
    rf"\b4[0-9]{{3}}(?:{_JOINT}[0-9]{{3}}){{3}}\b",
)
_SPLIT_CARD = r"\b[2-9][0-9 ./-]{0,22}\r?\n[0-9 ./-]{0,22}[0-9]\b"
"""A card of which a line break stands in the middle of a group."""
_SPLIT_CARD_KEY = r"[0-9 ./-]\r?\n[0-9 ./-]"
_CARD_HINT = rf"(?:{build_hints('card')}|(?i:card))"
_LOOSE_CARD = rf"{_CARD_HINT}[^0-9\n]{{0,32}}([2-9](?:[ .,/_-]{{0,2}}[0-9]){{11,18}})\b"
"""A card in any groups, behind a word that announces one."""
_IBAN = rf"\b[A-Za-z]\n?[A-Za-z]\n?[0-9]\n?[0-9](?:{_JOINT}?[A-Za-z0-9]){{11,30}}"
_IBAN_KEY = rf"\b[A-Za-z]\n?[A-Za-z]\n?[0-9]\n?[0-9]{_JOINT}?[A-Za-z0-9]"
_V4 = r"\b[0-9]{1,3}(?:\.[0-9]{1,3}){3}\b"
_V6 = r"[0-9A-Fa-f]{0,4}:[0-9A-Fa-f]{0,4}:[0-9A-Fa-f:]{0,80}(?:\.[0-9]{1,3}){0,3}"

_LABEL_END = r"[\"']?\s{0,2}[:=]\s{0,2}[\"']?"
_NAME_HINT = rf"(?:{build_hints('name')}{_LABEL_END}|{build_hints('name sentence')}[ :]{{0,2}})"
_NAME_WORD = rf"(?:[A-Z{CAPITAL}](?:[{_LETTER}'-]*[{_LETTER}]|\.)?|{UNCASED}+)"
_PARTICLE = r"(?:van|von|de|der|den|da|di|del|la|le|bin|ibn|al|el|dos) "
_NAME = rf"({_NAME_WORD}(?: (?:{_PARTICLE}){{0,2}}{_NAME_WORD}){{0,3}})"

_FULL_NAME = rf"({_NAME_WORD}(?: (?:{_PARTICLE}){{0,2}}{_NAME_WORD}){{1,3}})"
_TITLE = r"(?:^|[\s\"'(*:>])(?:Mrs?|Ms|Dr|Prof)\.? "
_CLOSING = (
    r"(?i:\b(?:regards|sincerely|cheers|best wishes|yours truly|signed(?: by)?)),? ?\n{0,3} ?"
)
_OWN_NAME = rf"(?i:\bmy (?:full )?name(?: is|['{OTHER}]s)):? "
_SMALL_NAME = rf"([a-z{SMALL}'-]{{2,20}} [a-z{SMALL}'-]{{2,20}})(?:[.,!?\n]|$| (?:and|from|i)\b)"
"""A name of two words, as people write it who write everything small."""

_YEAR = "(?:18|19|20)[0-9]{2}"
_MONTH = rf"[A-Za-z{SMALL}]{{3,10}}\.?"
_DATE = (
    rf"({_YEAR}[./ {UNCASED}-]{{1,2}}[0-9]{{1,2}}[./ {UNCASED}-]{{1,2}}[0-9]{{1,2}}{UNCASED}?"
    r"|[0-9]{1,2}[./ -]{1,2}[0-9]{1,2}[./ -]{1,2}[0-9]{2,4}"
    rf"|[0-9]{{1,2}}\.?(?:st|nd|rd|th|er)? (?:of |de )?{_MONTH},? (?:de )?{_YEAR}"
    rf"|{_MONTH} [0-9]{{1,2}}(?:st|nd|rd|th)?,? {_YEAR})"
)
_BIRTH = rf"{build_hints('birth')}[^0-9\n]{{0,12}}?\b{_DATE}"
_LINE = r"[^\n\"|;<>{}=\[\]]"
_ADDRESSES = {
    rf"{build_hints('address')}[\"']?[ \t]{{0,2}}[:=][ \t]{{0,2}}[\"']?({_LINE}{{6,120}})": (
        "address"
    ),
    rf"{build_hints('address sentence')}:? ([A-Z0-9{CAPITAL}{UNCASED}]{_LINE}{{5,120}})": (
        "address sentence"
    ),
}
"""Form -> the words that announce it."""


def all_patterns(regions: Sequence[str]) -> list[DataPattern]:
    """Return the patterns of every kind.

    Args:
        regions: ISO 3166 codes of the countries whose telephone numbers are recognised without
            `+` and country code, and whose national numbers need no word before them.

    Raises:
        InputError: a region is unknown.
    """
    return [
        DataPattern("email", _MAIL, _check_email, "@"),
        *obfuscated_patterns(),
        *phone_patterns(regions),
        *(DataPattern("credit_card", regex, _check_card) for regex in _CARDS),
        DataPattern("credit_card", _SPLIT_CARD, _check_card, _SPLIT_CARD_KEY),
        DataPattern("credit_card", _LOOSE_CARD, _check_called_card, _CARD_HINT),
        DataPattern("iban", _IBAN, _check_account, _IBAN_KEY),
        *national_patterns(regions),
        DataPattern("ip_address", _V4, _check_ipv4),
        DataPattern("ip_address", _V6, _check_ipv6, r":[0-9A-Fa-f]{0,4}:"),
        *credential_patterns(),
        DataPattern("personal_name", _NAME_HINT + _NAME, _check_name, _NAME_HINT),
        DataPattern("personal_name", _TITLE + _FULL_NAME, _check_full_name, _TITLE),
        DataPattern("personal_name", _CLOSING + _FULL_NAME, _check_full_name, _CLOSING),
        DataPattern("personal_name", _OWN_NAME + _SMALL_NAME, _check_small_name, _OWN_NAME),
        DataPattern(
            "date_of_birth", _BIRTH, check_whole("pattern", bool, 0.8), build_hints("birth")
        ),
        *(
            DataPattern("address", regex, _postal_address, build_hints(words))
            for regex, words in _ADDRESSES.items()
        ),
    ]


_ISSUERS = (
    ((13, 16, 19), ("4",)),  # Visa
    ((15,), ("34", "37")),  # American Express
    ((15,), ("1800", "2131")),  # JCB's first
    ((16,), ("35",)),  # JCB
    ((14, 16, 17, 18, 19), ("300", "301", "302", "303", "304", "305", "309", "36", "38", "39")),
    ((16,), ("51", "52", "53", "54", "55")),  # Mastercard
    ((16,), ("222[1-9]", "22[3-9]", "2[3-6]", "27[01]", "2720")),  # Mastercard's second
    ((16, 17, 18, 19), ("6011", "644", "645", "646", "647", "648", "649", "65")),  # Discover
    ((16, 17, 18, 19), ("62", "60", "81", "82", "508")),  # UnionPay, RuPay
    ((16, 17, 18, 19), ("2200", "2201", "2202", "2203", "2204", "9792")),  # Mir, Troy
    (tuple(range(12, 20)), ("5018", "5020", "5038", "56", "57", "58", "6304", "6390", "67")),
)
"""Lengths and first digits of each issuer's card numbers."""
_ISSUER = re.compile("|".join(first for _lengths, firsts in _ISSUERS for first in firsts).encode())
_ISSUED = re.compile(
    "|".join(
        rf"(?={'|'.join(firsts)})(?:{'|'.join(f'[0-9]{{{length}}}' for length in lengths)})"
        for lengths, firsts in _ISSUERS
    ).encode()
)
_FEWEST, _MOST = 12, 19
"""Digits of a card."""
_USUAL = re.compile(rb"[0-9]{16}|3[47][0-9]{13}")
"""The lengths of nearly all cards; few issuers have others."""
_LONGEST_ID = 15
"""Longer numbers are so often ids that they are a card only where somebody calls or tells it."""
_CALLED_CARD = re.compile(rf"{build_hints('card')}|(?i:card)".encode("latin-1"))
_CALLED_ID = re.compile(
    rb"(?:(?i:(?:\b|_)(?:ids?|[ug]uid|orders?|tracking|parcel|invoice|ticket|trace|span|requests?"
    rb"|messages?|msg|tweet|post|user|account|serial|sku|isbn|ean|upc|gtin|barcode|timestamp|ts"
    rb"|epoch|millis|ms|ns|imei|imsi|transaction|txn|event|session|build))|[a-z]I[dD])"
    rb"(?i:[ _-](?:no|nr|num|number|id|is|was))?\.?[\"']?[ \t:=#(\[]{0,4}[\"']?$"
)
"""The words before a number that is something else."""
_TOLD = re.compile(rb"\b(?:is|ist|est|es|is het|[e\xe0]) $")
"""The words before a number that somebody tells in a sentence."""
_CALLED_REACH = 48
_DOUBLED = bytes.maketrans(b"0123456789", b"0246813579")
"""A digit -> the sum of the digits of its double."""
_TEST_CARD = re.compile(
    b"4242424242424242|4111111111111111|4012888888881881|400000[0-9]{10}|4000056655665556"
    b"|5555555555554444|5105105105105100|5200828282828210|2223003122003222|378282246310005"
    b"|371449635398431|378734493671000|6011111111111117|6011000990139424|6011981111111113"
    b"|3056930902(?:0004|5904)|36227206271667|38520000023237|3566002020360505"
    b"|6200000000000005"
)
"""Numbers that payment providers publish for tests."""
_GROUP_END = re.compile(rb"\d(?!\d)")
_SEPARATORS = b" \t\r\n./-"
"""The characters between the digits of a candidate."""
_ROW = re.compile(rb"\b\d{4}(?:[ \t-]{1,3}\d{4}){8,}")
"""More groups of four digits than two cards have: a row of a table."""
_COLUMN = re.compile(rb"[ \t\d.,/|-]*\d[ \t\d.,/|-]*")
"""A line of numbers only."""
_TABLE_REACH = 80
"""Bytes around a candidate that are searched for a table."""


def _check_card(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept the longest card number at the start of the candidate; drop groups that follow it."""
    digits = text[start:end].translate(None, _SEPARATORS)
    if len(digits) < _FEWEST or not _ISSUER.match(digits):
        return None
    if not stands_apart(text, start, start) or _is_in_column(text, start, end):
        return None
    for match in reversed(list(_GROUP_END.finditer(text, start, end))):
        stop = match.end()
        number = digits[: len(text[start:stop].translate(None, _SEPARATORS))]
        if len(number) < _FEWEST or _TEST_CARD.fullmatch(number):
            return None
        if len(number) > _MOST or not (_ISSUED.fullmatch(number) and _has_luhn_digit(number)):
            continue
        if _is_in_row(text, start) or not _may_be_called_card(text, start, stop, number):
            return None
        if stop < end or stands_apart(text, end, end):
            return PatternHit(start, stop, 1.0, "luhn")
    return None


def _check_called_card(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a card number whose digits are grouped in no usual way."""
    number = text[start:end].translate(None, b" .,/_-")
    is_card = _ISSUED.fullmatch(number) and _has_luhn_digit(number)
    is_card = is_card and not _TEST_CARD.fullmatch(number)
    return PatternHit(start, end, 0.9, "luhn") if is_card else None


def _may_be_called_card(text: bytes, start: int, stop: int, number: bytes) -> bool:
    """Whether a number is grouped as on a card, as long as most cards, or not called an id.

    One in ten numbers has a right check digit by chance.
    """
    if stop - start > len(number) or _USUAL.fullmatch(number):
        return True
    before = max(start - _CALLED_REACH, 0)
    if _CALLED_CARD.search(text, before, stop + _CALLED_REACH):
        return True
    if _CALLED_ID.search(text, before, start):
        return False
    return len(number) <= _LONGEST_ID or _TOLD.search(text, before, start) is not None


def _is_in_column(text: bytes, start: int, end: int) -> bool:
    """Whether lines of numbers only surround a candidate of two lines."""
    if b"\n" not in text[start:end]:
        return False
    lines_before = text[max(start - _TABLE_REACH, 0) : start].split(b"\n")[-2:-1]
    lines_behind = text[end : end + _TABLE_REACH].split(b"\n")[1:2]
    return any(_COLUMN.fullmatch(line) for line in (*lines_before, *lines_behind))


def _is_in_row(text: bytes, start: int) -> bool:
    """Whether a candidate is part of a row of groups."""
    rows = _ROW.finditer(text, max(start - _TABLE_REACH, 0), start + _TABLE_REACH)
    return any(row.start() <= start < row.end() for row in rows)


def _has_luhn_digit(number: bytes) -> bool:
    # Luhn: every second digit from the right counts as the sum of the digits of its double. Bytes
    # are character codes, so the code of zero is subtracted for each.
    written = number[-1::-2] + number[-2::-2].translate(_DOUBLED)
    return (sum(written) - len(written) * ord("0")) % 10 == 0


_STRUCTURES = numdb.get("iban")
_FIELD = re.compile(r"([0-9]+)!([nac])")
_FIELD_CHARACTERS = {"n": "0-9", "a": "A-Z", "c": "0-9A-Z"}
_LETTER_VALUES = str.maketrans({letter: str(int(letter, 36)) for letter in ascii_uppercase})
_ALPHANUMERIC = re.compile(rb"[0-9A-Za-z]")


@cache
def _account_form(country: str) -> tuple[int, re.Pattern[str]] | None:
    """Return the length of a country's IBAN in characters, and its form; None if it has none."""
    fields = _FIELD.findall(_STRUCTURES.info(country)[0][1].get("bban", ""))
    account = "".join(f"[{_FIELD_CHARACTERS[sort]}]{{{length}}}" for length, sort in fields)
    length = 4 + sum(int(length) for length, _sort in fields)
    return (length, re.compile(f"{country}[0-9]{{2}}{account}")) if fields else None


def _check_account(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept an IBAN at the start of the candidate; its country tells how long it is."""
    # A message in parts may have a line break between the two letters.
    country = text[start : start + 3].replace(b"\n", b"").decode()[:2].upper()
    form = _account_form(country)
    if form is None:
        return None
    length, structure = form
    ends = [match.end() for match in _ALPHANUMERIC.finditer(text, start, end)]
    if len(ends) < length or text[ends[length - 1] : ends[length - 1] + 1].isalnum():
        return None
    stop = ends[length - 1]
    number = text[start:stop].translate(None, _SEPARATORS).decode().upper()
    # ISO 7064 MOD 97-10: the first four characters go to the end, and letters become 10 to 35.
    remainder = int((number[4:] + number[:4]).translate(_LETTER_VALUES)) % 97
    if remainder == 1 and structure.fullmatch(number):
        return PatternHit(start, stop, 1.0, "mod97")
    return None


_VERSION = re.compile(
    rb"(?i)(?:(?:^|[^0-9a-z])(?:v|ver|versions?|releases?|build|rev|revision|firmware|section"
    rb"|chapter|patch|driver|kernel|sdk|package|assembly|(?:file|product)version"
    rb"|(?:up|down)graded? (?:to|from))"
    rb"[\s.:=\"'(-]{0,3}(?:is |number |no\.? |to |from )?"
    rb"(?:[0-9.]{7,15}(?:,| and| or| to| ->|-) ?){0,2}"
    rb"|[a-z]/|(?:==|[<>~^]=|~|\^) ?)$"
)
_VERSION_REACH = 56
_NOBODYS = [
    ipaddress.ip_network(network)
    for network in (
        *(
            "0.0.0.0/32",
            "127.0.0.0/8",
            "224.0.0.0/4",
            "240.0.0.0/4",
            "::/128",
            "::1/128",
            "ff00::/8",
        ),
        # of examples: RFC 5737, 3849 and 9637
        *("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
    )
]
_NOBODYS_RANGES = [
    (network.version, int(network.network_address), int(network.broadcast_address))
    for network in _NOBODYS
]


def _check_ipv4(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept an IPv4 address unless the context says that it is a version number."""
    if not stands_apart(text, start, end) or text[start - 1 : start] == b".":
        return None
    if _VERSION.search(text[max(start - _VERSION_REACH, 0) : start]):
        return None
    return _make_ip_hit(text, start, end)


def _check_ipv6(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept an IPv6 address; times, MAC addresses and scopes in code look similar."""
    before, behind = text[max(start - 1, 0) : start], text[end : end + 1]
    piece = text[start:end]
    is_compressed = b"::" in piece
    if re.search(rb"[0-9A-Za-z_:]", before + behind):
        return None
    if not is_compressed:
        # Seven colons, or six before an embedded IPv4 address; a time or a MAC address has others.
        return _make_ip_hit(text, start, end) if piece.count(b":") in (6, 7) else None
    is_code = behind == b"(" or before in (b"$", b"%", b"\\")
    return _make_ip_hit(text, start, end) if _ASSIGNED_V6.fullmatch(piece) and not is_code else None


_ASSIGNED_V6 = re.compile(
    rb"(?i)(?:[23][0-9a-f]{3}:.*[0-9a-f]"  # of the internet
    rb"|(?=.*[0-9]|.*:.*:.*:)f(?:[cd][0-9a-f]|e[89ab])[0-9a-f]:.*[0-9a-f]"  # local
    rb"|64:ff9b:.*[0-9a-f]|::(?:ffff:)?[0-9]+\.[0-9.]+|::ffff:[0-9a-f:]+)"  # of IPv4
)
"""A compressed address of a range that is in use. In code, `a::b` may have only hexadecimal digits:
names in it begin with a letter, and few of them like a local address."""


def _make_ip_hit(text: bytes, start: int, end: int) -> PatternHit | None:
    try:
        address = ipaddress.ip_address(text[start:end].decode())
    except ValueError:
        return None
    version, number = address.version, int(address)
    if any(v == version and first <= number <= last for v, first, last in _NOBODYS_RANGES):
        return None
    return PatternHit(start, end, 0.95, "ipaddress")


_IMAGE_SUFFIXES = (b".png", b".jpg", b".jpeg", b".gif", b".svg", b".webp")
_MAIL_SUFFIXES = tuple(
    b"." + name
    for name in b"com org net edu gov info biz io co ai eu at au be br ca ch cz de dk es fi fr ie "
    b"it jp mx nl nz pl pt se uk us".split()
)
"""The ends of many addresses of people and of hardly any function in code."""


def _check_email(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept an e-mail address, but not a call in code or the file name of an image."""
    local = text[start:end].partition(b"@")[0]
    # Quotes and dashes before an address belong to the sentence.
    first = start + len(local) - len(local.lstrip(b".'-"))
    if local.endswith(b".") or text[first : first + 1] == b"@":
        return None
    address = text[start:end].lower()
    is_call = text[end : end + 1] == b"(" and not address.endswith(_MAIL_SUFFIXES)
    if is_call or address.endswith(_IMAGE_SUFFIXES):
        return None
    return PatternHit(first, end, 1.0, "pattern")


_NO_NAMES = frozenset(
    b"A An And But Can Enter For Good Great Hello Hey Hi How I If In It Just My N/A No None Not"
    b" Null Of Oh OK Okay Please Sure Thank Thanks That The There This To True False Unknown Use We"
    b" Well What When Where Who Why Would Yes You Your".split()
)
"""Words that begin a sentence after "Customer:" or a value in code."""
_ASSIGNED = re.compile(rb"=\s{0,2}[\"']?$")
"""The end of an assignment in code; a single word after it is no name."""


def _check_name(text: bytes, start: int, end: int) -> PatternHit | None:
    """Trust the hint unless the candidate is a call or an identifier in code."""
    is_code = text[end : end + 1] in (b"(", b"[", b"_") or text[end : end + 1].isdigit()
    words = text[start:end].split()
    if len(words) == 1 and (
        words[0] in _NO_NAMES or _ASSIGNED.search(text, max(start - 4, 0), start)
    ):
        return None
    return None if is_code else PatternHit(start, end, 0.6, "pattern")


_GROUPS = frozenset(
    b"Center Customer Department Office Security Service Services Support Team".split()
)


def _check_full_name(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a name of several words, but not of a group, of a sentence, or "Law-Abiding"."""
    words = text[start:end].split()
    is_usual = words[0] in _NO_NAMES or not _GROUPS.isdisjoint(words) or b"-" in text[start:end]
    return None if is_usual else _check_name(text, start, end)


_NO_SMALL_NAMES = frozenset(
    b"a about actually all also always an and as at because being but by called common easy enough"
    b" for from hard has here how if in is it just like long my never no not now of often on or"
    b" please pretty quite rare rather really said secret short so spelled still that the there"
    b" this to too unknown used very well what where which who why with written wrong you"
    b" your".split()
)
"""Words that follow "my name is" and are no names."""


def _check_small_name(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept two words of which neither is a usual one."""
    is_usual = not _NO_SMALL_NAMES.isdisjoint(text[start:end].split())
    return None if is_usual else PatternHit(start, end, 0.5, "pattern")


_SENTENCE_END = re.compile(
    rb"[a-z0-9]{3,}\.(?= [A-Z])|[!?](?= |$)|\. ?$|, (?:and|but|so|my|please) "
)
_OTHER_ADDRESS = re.compile(
    rb"(?i)\b(?:e-?mail|ip|mac|web|memory|wallet|bitcoin|server|url|bind|network)[ _-]?address\W*$"
)
_OTHER_REACH = 32
_HAS_NUMBER = re.compile(rb"\b[0-9]{1,8}[A-Za-z]?\b")
_NO_STREET = re.compile(
    rb"\((?![A-Z]{2,3}\))|[@\\*#$]|://|0x|\b[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|:[0-9a-f]{2}:|[a-z]_[a-z]"
)
_LETTERS = re.compile(rb"[^\W\d_]{3,}|[\xaa\xc0\xe0]{2,}")


def _postal_address(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept the rest of the line, up to the sentence's end, if it has a word and a number."""
    if _OTHER_ADDRESS.search(text, max(start - _OTHER_REACH, 0), start):
        return None
    if match := _SENTENCE_END.search(text, start, end):
        end = match.end() - match[0].endswith((b".", b". "))
    if text[start:end].startswith((b" ", b"'")):
        start += 1
    piece = text[start:end].rstrip(b" .,'")
    end = start + len(piece)
    if len(piece) < 6 or _NO_STREET.search(piece):
        return None
    if not (_HAS_NUMBER.search(piece) and _LETTERS.search(piece)):
        return None
    return PatternHit(start, end, 0.6, "hint")
