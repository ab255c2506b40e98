"""Builds the redaction rules of a recipe."""

from collections.abc import Sequence

from waltzrl.errors import MissingExtraError
from waltzrl.store.privacy.detection import DEFAULT_REGIONS, Detector
from waltzrl.store.privacy.digest import key_in
from waltzrl.store.privacy.redaction import RedactionRules, Vault
from waltzrl.store.privacy.settings import PrivacyConfig

PATTERNS = "patterns"
"""The engine that is our scanner alone."""


DEFAULTS = PrivacyConfig()
"""Redacts all kinds."""


def open_redaction(config: PrivacyConfig = DEFAULTS) -> RedactionRules:
    """Make redaction rules with a scanner of all kinds.

    Raises:
        InputError: the key cannot be read or created, a region is unknown, or the spaCy pipeline
            is not installed.
        MissingExtraError: the extra with the libraries of the engine is not installed.
    """
    scanner = open_scanner(config.regions)
    secret = None if config.key is None else key_in(config.key)
    vault = None if secret is None else Vault(secret)
    if config.engine != PATTERNS:
        scanner = _with_presidio(scanner, config.regions, config.engine.partition(":")[2])
    return RedactionRules(config.actions, scanner, secret, vault)


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
