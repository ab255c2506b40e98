"""Builds the redaction rules of a recipe."""

from collections.abc import Mapping
from pathlib import Path

from waltzrl.errors import MissingExtraError
from waltzrl.privacy import Action, Kind, RedactionRules, Vault, key_in


def open_redaction(actions: Mapping[Kind, Action], key: Path | None) -> RedactionRules:
    """Make redaction rules with a scanner of all kinds.

    Args:
        actions: what happens to each kind; kinds that are not listed are redacted.
        key: file with the key of `hash` and `seal`; None if no kind uses either.

    Raises:
        InputError: the key cannot be read or created.
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
    return RedactionRules(actions, PersonalDataScanner(), secret, vault)
