"""From a recipe's word on personal data to the policy that takes it out."""

from collections.abc import Mapping
from pathlib import Path

from waltzrl.errors import MissingExtraError
from waltzrl.privacy.detection import Kind
from waltzrl.privacy.digest import key_in
from waltzrl.privacy.redaction import Action, RedactionRules
from waltzrl.privacy.vault import Vault


def open_redaction(actions: Mapping[Kind, Action], key: Path | None) -> RedactionRules:
    """Make the policy, with a scanner of all kinds.

    Args:
        actions: for each kind; kinds that are not named are redacted.
        key: file of the key of `hash` and `seal`; None when neither is an action.

    Raises:
        InputError: the key cannot be read or made.
        MissingExtraError: check digits cannot be checked.
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
