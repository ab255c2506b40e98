"""Builds the redaction rules of a recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from waltzrl.errors import MissingExtraError
from waltzrl.store.privacy.detection import DEFAULT_REGIONS, Detector, Kind
from waltzrl.store.privacy.digest import key_in
from waltzrl.store.privacy.redaction import Action, RedactionRules, Vault

PATTERNS = "patterns"
"""The engine that is our scanner alone."""


def open_redaction(
    actions: Mapping[Kind, Action],
    key: Path | None,
    regions: Sequence[str] = DEFAULT_REGIONS,
    engine: str = PATTERNS,
) -> RedactionRules:
    """Make redaction rules with a scanner of all kinds.

    Args:
        actions: what happens to each kind; kinds that are not listed are redacted.
        key: file with the key of `hash` and `seal`; None if no kind uses either.
        regions: ISO 3166 codes of the countries whose numbers are recognised as written at home.
        engine: `patterns`; or `presidio` or `presidio:PIPELINE`, which adds its findings to ours.

    Raises:
        InputError: the key cannot be read or created, a region is unknown, or the spaCy pipeline
            is not installed.
        MissingExtraError: the extra with the libraries of the engine is not installed.
    """
    scanner = open_scanner(regions)
    secret = None if key is None else key_in(key)
    vault = None if secret is None else Vault(secret)
    if engine != PATTERNS:
        scanner = _with_presidio(scanner, regions, engine.partition(":")[2])
    return RedactionRules(actions, scanner, secret, vault)


def open_scanner(regions: Sequence[str] = DEFAULT_REGIONS) -> Detector:
    """Make a scanner of all kinds.

    Raises:
        InputError: a region is unknown.
        MissingExtraError: the extra with its libraries is not installed.
    """
    try:
        from waltzrl.store.privacy.scanner import PersonalDataScanner
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            "looking for personal data", "python-stdnum", "flywheel"
        ) from missing
    return PersonalDataScanner(regions=regions)


def _with_presidio(scanner: Detector, regions: Sequence[str], pipeline: str) -> Detector:
    try:
        from waltzrl.store.privacy.presidio import Detectors, PresidioDetector
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            "privacy.engine = presidio", "presidio-analyzer", "presidio"
        ) from missing
    return Detectors(scanner, PresidioDetector(regions, pipeline))
