"""Stand-ins for personal data: a model gets them, and its reply gets back what they stand for.

Three forms: `[EMAIL_1]`; `email-1@stand-in.invalid` where the reply must fit a JSON schema with an
e-mail address, because a server that enforces the format while it generates would not let the model
write brackets; and the mask `[EMAIL]`, which stands for no piece in particular. Other formats of a
schema have no form of their own: clients check a reply after the pieces are back in it.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import TypeVar

import msgspec
from msgspec import structs

from waltzrl.foundation.files import Json
from waltzrl.store.privacy.detection import KINDS, Detection, Detector, Kind, disjoint
from waltzrl.store.privacy.redaction import ESCAPE, replace_pieces, resolve_escapes

SHORTEST_KNOWN = 3
"""Characters. A shorter piece, such as a password of one letter, is also a word of any text, and is
replaced only where the scanner finds it."""
SHORTEST_NUMBER = 6
"""Digits. No shorter number identifies a person, and a request may have thousands."""
NUMBER_LIMIT = 10**40
"""Larger than any number that identifies a person."""

_NAME = rf"(?:{'|'.join(kind.upper() for kind in KINDS)})".replace("_", r"\\{0,2}_")
_NUMBERED = rf"{_NAME}(?:\\{{0,2}}_[0-9]+)?"
_STAND_IN = re.compile(
    rf"\[{_NUMBERED}\]|\\{{1,2}}\[{_NUMBERED}\\{{1,2}}\]|email-[0-9]+@stand-in\.invalid"
)
"""A stand-in, whose signs a model that writes Markdown may escape, in JSON by two backslashes."""
_WORD = re.compile(r"[^\W_]+")
# Unrolled into runs without backslashes, so that a long string takes linear time.
_JSON_STRING = re.compile(r'"([^"\\]*(?:\\.[^"\\]*)*)("?)', re.DOTALL)
"""Groups: the content, and the end, which a truncated text lacks."""

Value = TypeVar("Value")


class StandIns:
    """Replaces the personal data of one request, and restores it in the reply.

    Equal pieces have equal stand-ins, numbered in the order in which they are found, so that they
    stay the same while a conversation grows at its end. The pieces are kept in memory only.
    """

    def __init__(
        self,
        detector: Detector,
        *,
        numbered: bool,
        written: str = "",
        as_addresses: bool = False,
    ) -> None:
        """Start without a piece.

        Args:
            detector: finds the personal data.
            numbered: False replaces by masks, which nothing restores.
            written: all texts of the request. What looks like a stand-in in them is none of ours:
                its number is not given.
            as_addresses: stand-ins of e-mail addresses have the form of an address.
        """
        self._detector = detector
        self._numbered, self._as_addresses = numbered, as_addresses
        self._written = written
        self._stand_ins: dict[str, str] = {}
        """Piece -> its stand-in."""
        self._originals: dict[str, str] = {}
        """Stand-in -> the piece that is restored; empty for masks."""
        self._numbers: set[str] = set()
        """The stand-ins of pieces that were numbers in JSON and are no text elsewhere."""
        self._given: set[str] = set()
        self._counts: Counter[Kind] = Counter()
        self._found: dict[tuple[str, str], list[Detection]] = {}
        """Hint and text -> what the detector finds, which is asked once for each."""
        self._known: Mapping[str, Collection[tuple[int, int]]] = {}
        """The first word of each piece that the last pass found -> the place of the word in the
        piece, and the length of the piece."""
        self._needs_escapes = False
        """Whether one of these is written with escapes in JSON."""
        self._kinds: dict[str, Kind] = {}

    @property
    def restores(self) -> bool:
        """Whether a reply may have to be restored."""
        return bool(self._originals)

    @cached_property
    def prefixes(self) -> frozenset[str]:
        """All proper beginnings of the stand-ins that can be restored, once all are made."""
        return frozenset(s[:end] for s in self._originals for end in range(1, len(s)))

    def conceal_all(self, value: Value, conceal: Callable[[Value], Value]) -> Value:
        """Apply `conceal`, which uses the methods of this object, until it finds nothing new.

        So a piece is also replaced where nothing announces it: a password that one turn calls so,
        and another repeats.
        """
        while True:
            found = len(self._stand_ins)
            value = conceal(value)
            if len(self._stand_ins) == found:
                return value
            self._known = _index_pieces(self._stand_ins)
            self._needs_escapes = any('"' in piece or "\\" in piece for piece in self._stand_ins)

    def conceal(self, text: str) -> str:
        """Replace what is found in a text, also what JSON escapes hide.

        Valid JSON stays valid; its spaces may be lost if something is replaced.
        """
        found = self._find("", text)
        has_escapes = "\\" in text
        if not (found or (has_escapes and self._hides_something(text))):
            return text
        container = _read_container(text)
        # As JSON where a replacement in the text might break it: within an escape, or of a number.
        if container is not None and (has_escapes or not _is_in_strings(found, text)):
            with suppress(RecursionError):  # nested too deeply; read as a text
                return self._conceal_json(text, container)
        concealed = self._replace("", text)
        if not has_escapes:
            return concealed
        return replace_pieces(concealed, self._find_in_escapes, self._stand_in)

    def conceal_value(self, value: Json, key: str = "") -> Json:
        """Replace what is found in the texts, keys and numbers of a JSON value.

        Args:
            value: the value.
            key: under which it stands, a hint about it: `{"ssn": 536904399}`.
        """
        hint = f"{key}: " if key else ""
        if isinstance(value, str):
            # JSON in a string is read by `conceal`, with its own keys as hints.
            if _read_container(value) is None:
                value = self._replace(hint, value)
            return self.conceal(value)
        if isinstance(value, Mapping):
            return {
                self.conceal(name): self.conceal_value(item, name) for name, item in value.items()
            }
        if isinstance(value, Sequence):
            return [self.conceal_value(item, key) for item in value]
        written = _write_number(value)
        if len(written) < SHORTEST_NUMBER:
            return value
        found = self._find(hint, written)
        return self._stand_in_of_number(written, found[0].kind) if found else value

    def restore(self, text: str, *, in_json: bool = False) -> str:
        """Put the pieces back into a text; what was never given stays as it is.

        Args:
            text: of a reply.
            in_json: the text is JSON, in whose strings the stand-ins are.
        """
        if not self._originals:
            return text
        return _STAND_IN.sub(partial(self._original, in_json), text)

    def restore_json(self, text: str) -> str:
        """Put the pieces back into the strings of JSON, and of JSON within them.

        All else stays as the model wrote it. The text may be truncated.
        """
        if not self._originals:
            return text
        return _JSON_STRING.sub(self._restored_string, text)

    def _conceal_json(self, text: str, container: Json) -> str:
        concealed = self.conceal_value(container)
        written = text if concealed == container else _write_json(concealed)
        # What announces a value may be further away than its own key.
        whole = self._replace("", written)
        return written if _read_container(whole) is None else whole

    def _replace(self, hint: str, text: str) -> str:
        return replace_pieces(text, partial(self._find, hint), self._stand_in)

    def _find(self, hint: str, text: str) -> list[Detection]:
        """Return what the detector finds in a text behind a hint, and the known pieces."""
        if self._given:  # so that nothing in a stand-in is detected again
            text = _STAND_IN.sub(self._cover, text)
        found = self._found.get((hint, text))
        if found is None:
            found = self._found[hint, text] = _find_after(hint, text, self._detector)
        if not self._known or self._known.keys().isdisjoint(_WORD.findall(text)):
            return found
        known = self._find_known(text)
        return disjoint([*found, *known]) if known else found

    def _find_in_escapes(self, text: str) -> list[Detection]:
        """Return what is found in a text without its escapes, by its places in the text."""
        if resolve_escapes(text) == text:
            return []
        unescaped, places = _unescape(text)
        return [
            structs.replace(d, start=places[d.start], end=places[d.end])
            for d in self._find("", unescaped)
        ]

    def _cover(self, match: re.Match[str]) -> str:
        return "]" * len(match[0]) if match[0] in self._given else match[0]

    def _find_known(self, text: str) -> list[Detection]:
        """Return the known pieces that are no part of a longer word or number."""
        detections = []
        for word in _WORD.finditer(text):
            for place, length in self._known.get(word[0], ()):
                start = word.start() - place
                end = start + length
                kind = self._kinds.get(text[start:end]) if start >= 0 else None
                # A letter or digit on each side of the end would mean that the word goes on.
                ends = end == len(text) or not text[end - 1 : end + 1].isalnum()
                if kind is not None and ends:
                    known = Detection(kind=kind, start=start, end=end, score=1.0, validator="known")
                    detections.append(known)
        return detections

    def _hides_something(self, text: str) -> bool:
        """Return whether there may be something in what the escapes of a text stand for."""
        return self._needs_escapes or bool(self._find("", resolve_escapes(text)))

    def _stand_in(self, piece: str, kind: Kind) -> str:
        """Return the stand-in of a piece of a text."""
        original = self.restore(piece)  # a secret may have an address in it that was found before
        stand_in = self._stand_ins.get(original)
        if stand_in is None:
            stand_in = self._make_stand_in(kind)
            self._stand_ins[original], self._kinds[original] = stand_in, kind
            self._given.add(stand_in)
            if self._numbered:
                self._originals[stand_in] = original
        # Once it stands for a text anywhere, a reply gets it back as a text and not as a number.
        self._numbers.discard(stand_in)
        return stand_in

    def _stand_in_of_number(self, written: str, kind: Kind) -> str:
        """Return the stand-in of a whole number in JSON."""
        is_number = written not in self._stand_ins or self._stand_ins[written] in self._numbers
        stand_in = self._stand_in(written, kind)
        if is_number and self._numbered:
            self._numbers.add(stand_in)
        return stand_in

    def _make_stand_in(self, kind: Kind) -> str:
        if not self._numbered:
            return f"[{kind.upper()}]"
        while True:
            self._counts[kind] += 1
            number = self._counts[kind]
            is_address = kind == "email" and self._as_addresses
            stand_in = (
                f"email-{number}@stand-in.invalid" if is_address else f"[{kind.upper()}_{number}]"
            )
            if stand_in not in self._taken:
                return stand_in

    @cached_property
    def _taken(self) -> frozenset[str]:
        """What looks like a stand-in in the request itself."""
        return frozenset(map(_without_escapes, _STAND_IN.findall(self._written)))

    def _original(self, in_json: bool, match: re.Match[str]) -> str:
        original = self._originals.get(_without_escapes(match[0]))
        if original is None:
            return match[0]
        return _write_json(original)[1:-1] if in_json else original

    def _restored_string(self, match: re.Match[str]) -> str:
        content, end = match.groups()
        try:
            text = msgspec.json.decode(f'"{content}"', type=str)
        except msgspec.DecodeError:  # it ends within an escape, or has a raw line break
            return f'"{self.restore(content, in_json=True)}{end}'
        # The whole string, with its quotes, stands for what was a number in the request.
        if end and text in self._numbers:
            return self._originals[text]
        is_json = _read_container(text) is not None
        restored = self.restore_json(text) if is_json else self.restore(text)
        return match[0] if restored == text else f"{_write_json(restored)[:-1]}{end}"


class StandInStream:
    """Restores a text that comes in parts: what may be the beginning of a stand-in waits."""

    def __init__(self, stand_ins: StandIns) -> None:
        self._restore = stand_ins.restore
        self._prefixes = stand_ins.prefixes
        self._longest = 2 * max(map(len, self._prefixes), default=0)  # with all signs escaped
        self._held = ""

    def add(self, text: str, *, in_json: bool = False) -> str:
        """Add the next part, and return what is settled, restored as `StandIns.restore` does."""
        text = self._held + text
        places = range(max(0, len(text) - self._longest), len(text))
        # The earliest place holds back the most: the longest beginning of a stand-in.
        cut = next((place for place in places if self._may_begin(text[place:])), len(text))
        self._held = text[cut:]
        return self._restore(text[:cut], in_json=in_json)

    def _may_begin(self, end: str) -> bool:
        beginning = _without_escapes(end)
        return not beginning or beginning in self._prefixes

    def end(self) -> str:
        """Return what was held back, which is no whole stand-in."""
        text, self._held = self._held, ""
        return text


def _without_escapes(stand_in: str) -> str:
    return stand_in.replace("\\", "")


def _index_pieces(pieces: Iterable[str]) -> Mapping[str, Collection[tuple[int, int]]]:
    """Return where pieces can be found: by their first words, and not one by one."""
    index: dict[str, set[tuple[int, int]]] = {}
    for piece in pieces:
        word = _WORD.search(piece)
        if word is not None and len(piece) >= SHORTEST_KNOWN:
            index.setdefault(word[0], set()).add((word.start(), len(piece)))
    return index


def _find_after(hint: str, text: str, detector: Detector) -> list[Detection]:
    """Return what is found in a text as if `hint` stood before it."""
    if not hint:
        return detector.find(text)
    return [
        structs.replace(d, start=max(d.start - len(hint), 0), end=d.end - len(hint))
        for d in detector.find(hint + text)
        if d.end > len(hint)  # what lies wholly in the hint is not of this text
    ]


def _is_in_strings(found: Sequence[Detection], text: str) -> bool:
    """Return whether JSON stays JSON with a stand-in in the place of each piece."""
    parts: list[str] = []
    position = 0
    for detection in found:
        parts += (text[position : detection.start], "[X]")
        position = detection.end
    return _read_container("".join([*parts, text[position:]])) is not None


def _unescape(text: str) -> tuple[str, list[int]]:
    """Return a text without its escapes, and the places of its characters and its end in `text`."""
    parts: list[str] = []
    places: list[int] = []
    position = 0
    for match in ESCAPE.finditer(text):
        resolved = resolve_escapes(match[0])
        parts += (text[position : match.start()], resolved)
        places += range(position, match.start())
        is_text = resolved == match[0]
        places += range(*match.span()) if is_text else [match.start()] * len(resolved)
        position = match.end()
    places += range(position, len(text) + 1)
    return "".join([*parts, text[position:]]), places


def _write_number(value: float | bool | None) -> str:
    """Return a whole number as people write it; empty for what cannot identify a person."""
    # `not <` instead of `>=`, because every comparison with NaN is false.
    if value is None or isinstance(value, bool) or not abs(value) < NUMBER_LIMIT:
        return ""
    return str(int(value)) if value == int(value) else ""


def _read_container(text: str) -> Json:
    """Return the object or list that a text is in JSON; None of any other text."""
    stripped = text.strip()
    if stripped[:1] not in ("{", "[") or stripped[-1:] not in ("}", "]"):
        return None
    try:
        value: Json = msgspec.json.decode(stripped)
    except (msgspec.DecodeError, RecursionError):
        return None
    return value


def _write_json(value: Json) -> str:
    return msgspec.json.encode(value).decode()
