"""Personal data: detection, redaction, and keyed digests of names.

`PersonalDataScanner` is in `waltzrl.privacy.scanner`, because it needs the extra `flywheel`.
"""

from waltzrl.privacy.detection import DEFAULT_REGIONS, KINDS, Detection, Detector, Kind
from waltzrl.privacy.digest import key_in, subject_digest
from waltzrl.privacy.redaction import Action, RedactionRules, Vault
from waltzrl.privacy.scrubbing import Scrub, ScrubbingFilter, scrub_collaboration

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
