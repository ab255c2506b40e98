"""Builds the redaction rules of a recipe."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from waltzrl.errors import MissingExtraError
from waltzrl.privacy import DEFAULT_REGIONS, Action, Kind, RedactionRules, Vault, key_in


def open_redaction(
    actions: Mapping[Kind, Action], key: Path | None, regions: Sequence[str] = DEFAULT_REGIONS
) -> RedactionRules:
    """Make redaction rules with a scanner of all kinds.

    Args:
        actions: what happens to each kind; kinds that are not listed are redacted.
        key: file with the key of `hash` and `seal`; None if no kind uses either.
        regions: ISO 3166 codes of the countries whose numbers are recognised as written at home.

    Raises:
        InputError: the key cannot be read or created, or a region is unknown.
        MissingExtraError: the extra with the libraries of the scanner is not installed.
    """
    try:
        from waltzrl.privacy.scanner import PersonalDataScanner
    except ModuleNotFoundError as missing:
        raise MissingExtraError(
            "looking for personal data", "python-stdnum", "flywheel"
        ) from missing
    secret = None if key is None else key_in(key)
    vault = None if secret is None else Vault(secret)
    return RedactionRules(actions, PersonalDataScanner(regions=regions), secret, vault)
