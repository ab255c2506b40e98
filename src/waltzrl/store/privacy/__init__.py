"""Personal data: detection, redaction, and keyed digests of names.

`PersonalDataScanner` is in `waltzrl.store.privacy.scanner`, because it needs the extra `flywheel`.
"""

from waltzrl.store.privacy.detection import DEFAULT_REGIONS, KINDS, Detection, Detector, Kind
from waltzrl.store.privacy.digest import key_in, subject_digest
from waltzrl.store.privacy.redaction import Action, RedactionRules, Vault
from waltzrl.store.privacy.scrubbing import Scrub, ScrubbingFilter, scrub_collaboration

__all__ = [
    "DEFAULT_REGIONS",
    "KINDS",
    "Action",
    "Detection",
    "Detector",
    "Kind",
    "RedactionRules",
    "Scrub",
    "ScrubbingFilter",
    "Vault",
    "key_in",
    "scrub_collaboration",
    "subject_digest",
]
