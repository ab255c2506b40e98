"""Keys, tokens and passwords, recognised by their prefix or by the word before them."""

import math
import re
from collections import Counter

from waltzrl.store.privacy.detection import DataPattern, PatternHit, check_whole
from waltzrl.store.privacy.hints import build_hints
from waltzrl.store.privacy.vendor_keys import LOOSE, vendor_formats

_PEM_TITLE = r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
# The body has no two dashes in a row, which begin its end: so the search stays linear.
_PEM = (
    _PEM_TITLE + r"(?:[^-]|-[^-])*-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----",
    _PEM_TITLE + r"(?:(?:\\n|\s){1,4}[A-Za-z0-9+/=]{16,})+",  # truncated
)
# In normalised text \xe0 stands for any small letter with an accent, as for the Italian è.
_BETWEEN = r"[\"']{0,2}(?:\s{0,3}(?::=|=>|[:=])\s{0,3}| (?:is|ist|lautet|est|es|e|\xe0):? )"
_VALUE = r"(\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|[\"']?[^\s\"'<>\[\]]{4,200})"
_PASSWORD = rf"(?:(?i:passwor[dt]|passwd|passphrase|passcode|pwd)|{build_hints('password')})"
_TOKEN = (
    r"(?i:(?:api|access|secret|private|account)[_ -]?key|access[_ -]?key[_ -]?id"
    r"|secret|token|credentials?)"
)
_BEARER = (
    r"(?i:\bbearer |authorization[\"']?: {0,3}[\"']?(?:basic|token) )([A-Za-z0-9_\-+/=.~]{12,})"
)
_IN_URL = r"://[^\s/:@]{1,64}:([^\s/@]{1,128})@"

_IN_OPTION = r" -u [\"']?[^\s:\"']{1,64}:([^\s\"']{4,128})"
_SHORT_WORD = r"(?i:\b(?:pw|pass))[\"']?(?:\s{0,3}[:=]\s{0,3}| is )"
_PIN = r"(?i:\bpin(?: code| number)?)[\"']?(?:\s{0,3}[:=]\s{0,3}| is )[\"']?([0-9]{4,8})\b"
_FURTHER = rf"{_PASSWORD}(?:[^\n.:=]{{0,24}} (?:to|was|as|now))? "
_MIXED = r"[\"']?([^\s\"'<>\[\]\\]{6,64})"
# Names such as SHA-256 mix letters and digits as passwords do.
_ALGORITHM = re.compile(
    r"(?i)(?:sha|md|aes|base|utf|pbkdf|argon|oauth|scrypt|des|rc|ntlmv|http|ipv|iso|win|mp)-?[0-9-]+"
)

_PLACEHOLDER = re.compile(
    r"(?i)[$%{*<(&].*|.*\(.*|(.)\1*|none|null|nil|true|false|undefined|str(?:ing)?|bytes|required|"
    r"optional|redacted|hidden|.*password|passwd|[a-z_]+(?:\.[a-z_]+)+"
)
"""A placeholder for a password, or code that obtains one."""
_CODE = re.compile(r"[\w.]+\(.*\)|[${]\{|^<.*>$|\}\}?$|^\$\(|[a-z]_[a-z]|[a-z]\.[a-z]")
_TEST_KEY = re.compile(r"(?:AKIA|ASIA)[0-9A-Z]{9}EXAMPLE|[A-Za-z0-9+/]+EXAMPLEKEY|[spr]k_test_.*")
"""Keys in the documentation of Amazon, and Stripe's keys of test accounts."""
_IN_SENTENCE = re.compile(rb" (?:is|ist|lautet|est|es|e|\xe0) $")
_WORD = re.compile(r"[A-Za-z]+(?:[_-][A-Za-z]+)*")
_MIN_ENTROPY = 2.8
"""Bits per character; words with a number have less."""
_MIN_KEY_LENGTH = 8
_MIN_MIXED_LENGTH = 6
_MIN_LONG_LENGTH = 20
_LONGEST_WORD = 20
"""Letters; a longer part of a name of small and capital letters is no word."""


def credential_patterns() -> list[DataPattern]:
    """Return the patterns of keys, tokens and passwords."""
    patterns = [DataPattern("secret", regex, _check_key, key) for regex, key in vendor_formats()]
    patterns += [DataPattern("secret", regex, _loose_key) for regex in LOOSE]
    patterns += [DataPattern("secret", regex, _check_key, _PEM_TITLE) for regex in _PEM]
    return [
        *patterns,
        DataPattern("secret", _PASSWORD + _BETWEEN + _VALUE, _check_password, _PASSWORD),
        DataPattern("secret", _TOKEN + _BETWEEN + _VALUE, _check_token, _TOKEN),
        DataPattern("secret", _FURTHER + _MIXED, _check_mixed, _PASSWORD),
        DataPattern("secret", _SHORT_WORD + _MIXED, _check_mixed, _SHORT_WORD),
        # `bool` accepts any digits: the word before them decides.
        DataPattern("secret", _PIN, check_whole("hint", bool, 0.7)),
        DataPattern("secret", rf"{_TOKEN} {_MIXED}", _check_long_token, f"{_TOKEN} "),
        DataPattern("secret", rf"(?i:\bkey)(?: is|:| ?=) ?{_MIXED}", _check_long_token),
        DataPattern("secret", _IN_OPTION, _check_password, " -u "),
        DataPattern("secret", _BEARER, _check_token),
        DataPattern("secret", _IN_URL, _check_password, "://"),
    ]


def _check_key(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a value of a vendor's form unless it is a placeholder or published for tests."""
    value = text[start:end].decode("latin-1")
    if _TEST_KEY.fullmatch(value) or entropy(value) < _MIN_ENTROPY:
        return None
    return PatternHit(start, end, 0.95, "prefix")


def _loose_key(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a value that also looks random; names of packages have such a prefix too."""
    value = text[start:end].decode("latin-1")
    words = max(map(len, re.split("[-_]", value)))
    is_random = _is_mixed(value) or (
        words >= _LONGEST_WORD and re.search("[a-z][A-Z]", value) is not None
    )
    return _check_key(text, start, end) if is_random else None


def _check_password(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a value that is not a placeholder, code or a word of a sentence."""
    start, end, is_quoted = _strip_quotes(text, start, end)
    value = text[start:end].decode("latin-1")
    if not value or (_PLACEHOLDER.fullmatch(value) and not _is_strong(value)):
        return None
    # "The password is wrong" has none; "password: wrong" at the end of a line may be one.
    if _WORD.fullmatch(value) and not (is_quoted or _ends_the_line(text, start, end)):
        return None
    return PatternHit(start, end, 0.8, "hint")


def _is_strong(value: str) -> bool:
    """Whether symbols in a value belong to a password, and not to code or a template."""
    has_all = all(re.search(letters, value) for letters in ("[a-z]", "[A-Z]", "[0-9]"))
    return has_all and len(value) >= _MIN_KEY_LENGTH and not _CODE.search(value)


def _check_token(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a value that looks random."""
    start, end, _is_quoted = _strip_quotes(text, start, end)
    value = text[start:end].decode("latin-1")
    if len(value) < _MIN_KEY_LENGTH or not _is_mixed(value):
        return None
    if _PLACEHOLDER.fullmatch(value) or _TEST_KEY.fullmatch(value):
        return None
    return PatternHit(start, end, 0.8, "entropy") if entropy(value) >= _MIN_ENTROPY else None


def _check_mixed(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a value of letters and digits that is not the name of an algorithm."""
    start, end, _is_quoted = _strip_quotes(text, start, end)
    value = text[start:end].decode("latin-1")
    is_password = len(value) >= _MIN_MIXED_LENGTH and _is_mixed(value)
    if not is_password or _PLACEHOLDER.fullmatch(value) or _CODE.search(value):
        return None
    return None if _ALGORITHM.match(value) else PatternHit(start, end, 0.6, "hint")


def _check_long_token(text: bytes, start: int, end: int) -> PatternHit | None:
    """Accept a value that looks random and is long, behind a word that announces many things."""
    hit = _check_token(text, start, end)
    if hit is None or hit.end - hit.start < _MIN_LONG_LENGTH:
        return None
    value = text[hit.start : hit.end].decode("latin-1")
    return hit if re.fullmatch(r"[A-Za-z0-9+/=_-]+", value) else None


def _strip_quotes(text: bytes, start: int, end: int) -> tuple[int, int, bool]:
    """Strip quotes, or the punctuation after an unquoted value; also tell whether it was quoted."""
    quote = text[start : start + 1]
    if quote in (b'"', b"'"):  # the closing quote is missing in a truncated text
        return start + 1, end - text.endswith(quote, start + 1, end), True
    # An unquoted value ends where a list or a statement goes on.
    value = text[start:end].split(b",")[0].split(b";")[0]
    return start, start + len(value.rstrip(b".!?:)}\\")), False


def _ends_the_line(text: bytes, start: int, end: int) -> bool:
    """Whether only the value follows its hint on the line, and the hint is not a sentence."""
    line_end = text[end : end + 3].split(b"\n")[0].strip(b" \r.")
    return not line_end and not _IN_SENTENCE.search(text, max(start - 10, 0), start)


def _is_mixed(value: str) -> bool:
    return any(map(str.isdigit, value)) and any(map(str.isalpha, value))


def entropy(value: str) -> float:
    """Return the Shannon entropy in bits per character."""
    counts = Counter(value)
    return -sum(n / len(value) * math.log2(n / len(value)) for n in counts.values())
