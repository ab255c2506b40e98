"""What is done with personal data once it is found."""

import hmac
import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import structs

from waltzrl.privacy.detection import Detection, Detector, Kind
from waltzrl.privacy.placeholders import covered, hashed, redacted
from waltzrl.privacy.vault import Vault
from waltzrl.telemetry.files import Json

Action = Literal["redact", "mask", "hash", "keep", "seal"]
"""What becomes of ada@example.com.

redact  [REDACTED:email]
mask    ***@*******.***     of cards, accounts, ids and telephones the last four remain
hash    [email:dbnk...]     keyed: equal pieces stay equal
keep    ada@example.com
seal    [SEALED:email:...]  whoever has the vault's key can read it again
"""

_ENDS_SHOWN: tuple[Kind, ...] = ("phone", "credit_card", "iban", "ssn", "national_id")
_SHOWN = 4
_LONGEST_NUMBER = 10**40
"""No number of a person is longer."""
_ESCAPE = re.compile(r"\\(?:\\|u005[cC])*(?:u([0-9a-fA-F]{4})|([nrt]))?")
"""Of JSON, also of JSON within JSON: a character by its number, or white space. What spells nothing
matches too: it would be read again from each of its backslashes."""


class RedactionRules:
    """Takes personal data out of texts and values: one action for each kind."""

    def __init__(
        self,
        actions: Mapping[Kind, Action],
        engine: Detector,
        key: bytes | None = None,
        vault: Vault | None = None,
    ) -> None:
        """Choose what is done.

        Args:
            actions: for each kind; kinds that are not named are redacted.
            engine: finds the personal data.
            key: of the hashes.
            vault: seals.

        Raises:
            ValueError: an action lacks its key or its vault.
        """
        if key is None and "hash" in actions.values():
            raise ValueError("the action `hash` needs a key, got none; give one, or redact")
        if vault is None and "seal" in actions.values():
            raise ValueError("the action `seal` needs a vault, got none; give one, or redact")
        self._actions = dict(actions)
        self._engine = engine
        self._key = key
        self._vault = vault

    def scrub(self, text: str) -> str:
        r"""Return the text without what is not to be kept, and also what its escapes spell.

        Arguments of tools and reviews are JSON, whole or cut short, and `ada\u0040example.com` is
        an address there. Only where an escape hides something are escapes resolved.
        """
        scrubbed = self._scrub_after("", text)
        spelt = _spelt(scrubbed)
        if spelt == scrubbed:
            return scrubbed
        uncovered = self._scrub_after("", spelt)
        return scrubbed if uncovered == spelt else uncovered

    def scrubbed(self, value: Json) -> Json:
        """Return the value with every text, key and number scrubbed; a key is a hint on its value.

        A number that is personal data becomes the text that stands for it.
        """
        return self._scrubbed_under("", value)

    def _scrub_after(self, hint: str, text: str) -> str:
        """Scrub a text that is read behind a hint.

        What is taken out may have hidden what stands beside it, so the text is read again until
        nothing is found. Every pass leaves less to find.
        """
        while findings := self._unwanted(hint, text):
            parts = []
            place = 0
            for finding in findings:
                parts.append(text[place : finding.start])
                parts.append(self._instead(text[finding.start : finding.end], finding.kind))
                place = finding.end
            before, text = text, "".join([*parts, text[place:]])
            if text == before:
                break
        return text

    def _unwanted(self, hint: str, text: str) -> list[Detection]:
        """Return what must go from `text`."""
        found = self._engine.find(hint + covered(text))
        return [
            structs.replace(f, start=max(f.start - len(hint), 0), end=f.end - len(hint))
            for f in found
            if f.end > len(hint) and self._actions.get(f.kind) != "keep"
        ]

    def _instead(self, piece: str, kind: Kind) -> str:
        """Return what stands for a piece from now on."""
        action = self._actions.get(kind, "redact")
        if action == "mask":
            return masked(piece, kind)
        if action == "hash" and self._key is not None:
            content = piece.encode(errors="surrogatepass")
            return hashed(kind, hmac.digest(self._key, content, "sha256"))
        if action == "seal" and self._vault is not None:
            return self._vault.seal(piece, kind)
        return redacted(kind)

    def _scrubbed_under(self, key: str, value: Json) -> Json:
        if isinstance(value, str):
            return self._scrub_under(key, value)
        if isinstance(value, Mapping):
            return self._scrubbed_mapping(value)
        if isinstance(value, Sequence):
            return [self._scrubbed_under(key, each) for each in value]
        written = _written(value)
        text = self._scrub_under(key, written)
        return value if text == written else text

    def _scrub_under(self, key: str, text: str) -> str:
        """Scrub the value of a key: behind the key, which may be a hint, and by itself."""
        return self.scrub(self._scrub_after(f"{key}: ", text) if key else text)

    def _scrubbed_mapping(self, value: Mapping[str, Json]) -> dict[str, Json]:
        result: dict[str, Json] = {}
        for key, each in value.items():
            name = self.scrub(key)
            if name in result:  # two keys, one stand-in
                name = f"{name} {len(result)}"
            result[name] = self._scrubbed_under(key, each)
        return result


def masked(piece: str, kind: Kind) -> str:
    """Put `*` for letters and digits, but for the last four of a long number."""
    places = [place for place, character in enumerate(piece) if character.isalnum()]
    shown = _SHOWN if kind in _ENDS_SHOWN and len(places) > 2 * _SHOWN else 0
    hidden = set(places[: len(places) - shown])
    return "".join("*" if place in hidden else each for place, each in enumerate(piece))


def _written(value: float | bool | None) -> str:
    """Write a number as a person writes it; nothing for what no number of a person can be."""
    if value is None or isinstance(value, bool) or not abs(value) < _LONGEST_NUMBER:
        return ""
    return str(int(value)) if value == int(value) else ""


def _spelt(text: str) -> str:
    """Return the text with its escapes resolved, as one that any database holds."""
    spelt = _ESCAPE.sub(_character, text)
    if spelt == text:
        return text
    whole = spelt.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", " ")


def _character(escape: re.Match[str]) -> str:
    number, space = escape.groups()
    return chr(int(number, 16)) if number else " " if space else escape[0]
